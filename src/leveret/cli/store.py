"""`leveret store`: is the store whole, is its schema of this release, and all that it holds into another one."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leveret.cli import exits
from leveret.cli.options import Common, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Any

    from leveret.cli.looking import Look
    from leveret.core.urls import StoreUrl
    from leveret.ports import DocumentStore
    from leveret.runtime.copy_counts import Copied, Tally
    from leveret.runtime.copying import StoreCopy


def add_to(cli: typer.Typer) -> None:
    """Declare the group."""
    group = typer.Typer(help="Where waiting and dead messages are kept.", no_args_is_help=True)
    command(group, "check")(check)
    command(group, "migrate")(migrate)
    command(group, "copy")(copy)
    cli.add_typer(group, name="store")


async def check(*, common: Common) -> int:
    """Check that the store is whole, and say what it holds.

    Ends with exit code 1 where it is not.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        found = await look.store.check()
        _tell(look, found)
        return exits.DONE if is_whole(found) else exits.WRONG


async def migrate(*, common: Common) -> int:
    """Bring the store's schema forward to this release.

    Opening a store does the same. A store of a newer release is refused, and stays as it is.
    """
    from leveret.cli.looking import looking

    async with looking(common) as look:
        found = await look.store.check()
        _tell(look, found)
        return exits.DONE if found["schema"] == found["newest_schema"] else exits.WRONG


async def copy(
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The other store; created where there is none.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how much; nothing is written.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask where somebody was at work since an earlier copy.")
    ] = False,
    common: Common,
) -> int:
    """Copy all that waits and all that is dead into another store.

    What is left of each delay is kept, and so are bodies, byte for byte, and states. Documents that a RetryWorkerRunner
    keeps for programs of the JSON form come along. The store itself stays as it is.
    Stop every process of the app first: nobody may hold a lease on either side. What is in the other store already is
    left as it is, so that a copy that was cut short is run again to go on. Ends with exit code 6 where something is
    missing over there.
    """
    from leveret.cli.looking import looking
    from leveret.core.errors import NotFound
    from leveret.core.urls import parse_store
    from leveret.runtime.copying import StoreCopy
    from leveret.runtime.wiring import make_store

    url = parse_store(to, "--to")
    async with looking(common) as look:
        _refuse_useless(look, url)
        target = make_store(url, look.world)
        try:
            try:
                await target.open(create=not dry_run)
            except NotFound:
                return await _would_copy(look, str(url), None)
            ttl = look.config.lease.ttl
            if dry_run:
                copying = StoreCopy(look.store, target, world=look.world, ttl=ttl)
                return await _would_copy(look, target.display, copying)
            async with _documents(look, look.config.store, url) as (ours, theirs):
                both = {namespace: (ours[namespace], theirs[namespace]) for namespace in ours}
                copying = StoreCopy(look.store, target, world=look.world, ttl=ttl, documents=both)
                return await _copy(look, copying, target.display, list(both), yes=yes)
        finally:
            await target.close()


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether a store's own check finds no fault in it."""
    return bool(found["integrity"] == "ok" and found["schema"] == found["newest_schema"])


def schema_words(found: Mapping[str, Any]) -> str:
    """Its schema, and whether that is the newest."""
    if found["schema"] == found["newest_schema"]:
        return f"schema {found['schema']}, up to date"
    return f"schema {found['schema']}, this release has {found['newest_schema']}"


def _tell(look: Look, found: Mapping[str, Any]) -> None:
    if look.console.json:
        look.console.record({"store": look.store.display, **found})
        return
    look.console.result(
        f"{look.store.display}: {schema_words(found)}; {found['waiting']} waiting, {found['dead']} dead, "
        f"integrity {found['integrity']}"
    )


def _refuse_useless(look: Look, to: StoreUrl) -> None:
    """Say so where nothing would be left of a copy, or nothing is to be copied.

    Raises:
        NotSupported: the other store lives inside this process.
        ConfigError: it is the same store.
    """
    from leveret.core.errors import ConfigError, NotSupported

    if to.kind == "memory":
        raise NotSupported(f"--to {to}: it lives inside this process, and would be gone with it")
    here = look.config.store
    same_file = to.kind == here.kind == "sqlite" and Path(to.path).resolve() == Path(here.path).resolve()
    if to == here or same_file:
        raise ConfigError(f"--to {to}: this is the store that is copied ({look.config.origin('store')})")


async def _would_copy(look: Look, to: str, copying: StoreCopy | None) -> int:
    """What a copy would be about; *copying* is None where there is no other store yet."""
    from leveret.core.retry_entry import Filter
    from leveret.runtime.copying import STATES, how_many

    async with _documents(look, look.config.store) as (ours,):
        for namespace in await _namespaces(look, list(ours)):
            wanted = Filter(namespace=namespace)
            would = {
                "retries": await look.store.count_entries(wanted),
                "dead_letters": await look.store.count_letters(wanted, states=STATES),
            }
            words = f"{would['retries']} waiting and {would['dead_letters']} dead"
            if namespace in ours:
                would["documents"] = await how_many(ours[namespace])
                words = f"{would['retries']} waiting, {would['documents']} documents and {would['dead_letters']} dead"
            if look.console.json:
                look.console.record({"namespace": namespace, "to": to, "would_copy": would})
            else:
                look.console.result(
                    f"{namespace}: {words} would be copied to {to}, those left out that it has already; nothing was "
                    "done (--dry-run)"
                )
            if copying is not None:
                await _warn(look, copying, namespace)
    return exits.DONE


@contextlib.asynccontextmanager
async def _documents(look: Look, *urls: StoreUrl) -> AsyncIterator[list[dict[str, DocumentStore]]]:
    """What retry workers keep for programs of the JSON form in our store: at each of *urls*, by namespace, open.

    A runner keeps what it watches on the exchange `jobs` in the collection `jobs.retry_worker`, under a lease of that
    name: that is in namespace `jobs`. Another collection stands for itself.
    """
    from leveret.core.json_form import RETRY_WORKER_TYPE
    from leveret.retry.worker import RetryWorker
    from leveret.runtime.wiring import make_document_store

    collections = set(await look.store.document_collections())
    for lease in await look.store.leases(None):
        exchange, _, name = lease.rpartition("/")
        # Where a runner has kept nothing yet, it is known by its lease alone.
        if name == RETRY_WORKER_TYPE and exchange not in collections:
            collections.add(f"{exchange}.{RETRY_WORKER_TYPE}")
    named = {}
    for collection in sorted(collections):
        exchange = collection.removesuffix(f".{RETRY_WORKER_TYPE}")
        namespace = collection if exchange in collections else exchange
        if look.namespace in (None, namespace):
            named[namespace] = collection
    async with contextlib.AsyncExitStack() as opened:
        found: list[dict[str, DocumentStore]] = []
        for url in urls:
            stores = {}
            for namespace, collection in named.items():
                store = stores[namespace] = make_document_store(
                    url,
                    look.world,
                    collection_name=collection,
                    doc_id_field=RetryWorker.REQUIRED_DOC_ID_FIELD,
                )
                opened.push_async_callback(store.close)
                await store.open()
            found.append(stores)
        yield found


async def _namespaces(look: Look, documented: Sequence[str]) -> list[str]:
    """Those to copy: what is shown, and those with documents alone."""
    return sorted({*await look.namespaces(), *documented})


async def _warn(look: Look, copying: StoreCopy, namespace: str) -> bool:
    """Tell who has been at work since an earlier copy, and who is; whether the former is so."""
    since = await copying.at_work_since(namespace)
    for words in since:
        look.console.warning(
            f"{words} since it was last copied. What has been processed since then would come back"
        )
    for words in await copying.in_the_way(namespace):
        look.console.warning(words)
    return bool(since)


async def _copy(look: Look, copying: StoreCopy, to: str, documented: Sequence[str], *, yes: bool) -> int:
    console = look.console
    namespaces = await _namespaces(look, documented)
    for namespace in namespaces:
        if await _warn(look, copying, namespace):
            refused = console.agreed(f"copy {namespace} to {to} once more", yes=yes)
            if refused is not None:
                return refused
    found: list[Copied] = []
    async with copying.holding(namespaces):
        with console.progress(f"copying to {to}", None) as bar:
            for namespace in namespaces:
                found.append(await copying.run(namespace, told=bar.advance))
    _tell_copied(look, to, found)
    return exits.DONE if all(each.whole for each in found) else exits.PART


def _tell_copied(look: Look, to: str, found: Sequence[Copied]) -> None:
    console = look.console
    if console.json:
        for each in found:
            documents = {} if each.documents is None else {"documents": _counts(each.documents)}
            console.record({
                "namespace": each.namespace, "from": look.store.display, "to": to, "whole": each.whole,
                "retries": _counts(each.retries), "dead_letters": _counts(each.letters), **documents,
                "acts": each.acts, "maybe_twice": each.claimed,
            })  # fmt: skip
    else:
        console.head(f"from {look.store.display} to {to}")
        console.table(
            ("namespace", "what", "copied", "there already", "refused", "here", "there"),
            [
                (each.namespace, what, *map(str, _counts(tally).values()))
                for each in found
                for what, tally in _tallies(each)
            ],
            right=("copied", "there already", "refused", "here", "there"),
        )
    for each in found:
        for _, tally in _tallies(each):
            for words in tally.refused:
                console.warning(f"the other store does not take {words}")
            for words in tally.lost:
                console.warning(f"this store does not have all of {words}")
        if each.claimed:
            console.warning(
                f"{each.namespace}: a replay was in the middle of {each.claimed} dead letters. They lie as dead over "
                "there, with a note that they may have been published"
            )
        if not each.whole:
            console.warning(f"{each.namespace} is not all there. Run it again to go on")
    if found and all(each.whole for each in found):
        console.note(f"All of it is there. Let the app use it now, and this one no more:  store = {to}")


def _tallies(copied: Copied) -> list[tuple[str, Tally]]:
    """The kinds of rows, and what became of them."""
    documents = [] if copied.documents is None else [("documents", copied.documents)]
    return [("waiting", copied.retries), *documents, ("dead letters", copied.letters)]


def _counts(tally: Tally) -> dict[str, int]:
    return {
        "copied": tally.copied, "there_already": tally.there, "refused": len(tally.refused),
        "source": tally.source, "target": tally.target,
    }  # fmt: skip
