from __future__ import annotations

import copy
import doctest
import inspect
import pickle
from datetime import timedelta
from decimal import Decimal

import pytest

from leveret.core import errors
from leveret.core.errors import (
    AccessRefused,
    AppNotFound,
    AppNotOpen,
    BadPayload,
    BrokerError,
    BrokerUnreachable,
    ConfigError,
    Failure,
    HardFailure,
    LeaseLost,
    LeveretError,
    MissingExtra,
    NotFound,
    NotSupported,
    PublishError,
    PublishFailures,
    PublishRefused,
    PublishTimeout,
    QueueMismatch,
    RpcRemoteError,
    RpcTimeoutError,
    RpcUnknownError,
    RpcUnreachableError,
    SoftFailure,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransportUnavailableError,
    Unroutable,
    WorkerDefinition,
)

ALL = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, BaseException)]
OURS = [each for each in ALL if issubclass(each, LeveretError) and each is not PublishFailures]

PARENTS = {
    ConfigError: (LeveretError, ValueError),
    WorkerDefinition: (LeveretError, TypeError),
    AppNotOpen: (LeveretError,),
    AppNotFound: (LeveretError,),
    MissingExtra: (LeveretError, ImportError),
    NotSupported: (LeveretError,),
    BadPayload: (LeveretError, ValueError),
    NotFound: (LeveretError, LookupError),
    PublishError: (LeveretError,),
    Unroutable: (PublishError,),
    PublishRefused: (PublishError,),
    PublishTimeout: (PublishError, TimeoutError),
    PublishFailures: (LeveretError,),
    BrokerError: (LeveretError,),
    BrokerUnreachable: (BrokerError,),
    AccessRefused: (BrokerError,),
    QueueMismatch: (BrokerError,),
    TransportUnavailableError: (LeveretError,),
    RpcUnreachableError: (TransportUnavailableError,),
    RpcUnknownError: (TransportUnavailableError,),
    RpcTimeoutError: (LeveretError, TimeoutError),
    RpcRemoteError: (LeveretError,),
    StoreError: (LeveretError,),
    StoreUnavailable: (StoreError,),
    StoreRefused: (StoreError,),
    LeaseLost: (StoreError,),
    LeveretError: (Exception,),
    Failure: (Exception,),
    SoftFailure: (Failure,),
    HardFailure: (Failure,),
}


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(errors).failed == 0


def test_the_tree_is_the_one_that_is_drawn():
    assert {each: each.__bases__ for each in ALL} == PARENTS
    drawing = inspect.getdoc(errors)
    assert drawing is not None
    assert [each.__name__ for each in ALL if each.__name__ not in drawing] == []


def test_a_failure_is_the_users_word_and_no_error_of_leveret():
    assert not issubclass(Failure, LeveretError)


@pytest.mark.parametrize("kind", OURS)
def test_an_error_without_words_says_the_first_paragraph_of_its_docstring(kind):
    text = str(kind())
    assert text == " ".join(inspect.getdoc(kind).split("\n\n")[0].split())
    assert text.endswith((".", ")."))
    assert "Attributes" not in text


@pytest.mark.parametrize("kind", OURS)
def test_an_error_with_words_says_just_those(kind):
    assert str(kind("shop.charge is gone")) == "shop.charge is gone"
    assert str(kind("")) == ""


def test_an_error_of_a_class_without_a_docstring_says_that_of_its_parent():
    class Silent(AppNotOpen):
        pass

    assert str(Silent()) == str(AppNotOpen())


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
@pytest.mark.parametrize(
    "error",
    [
        *(kind("words") for kind in OURS),
        PublishRefused("words", code=403),
        RpcRemoteError("words", type="KeyError", message="'url'", traceback="Traceback"),
        PublishFailures(["a", "b"], {2: PublishTimeout("late")}),
        HardFailure("410 gone"),
        SoftFailure("busy", retry_after=2, retry_max=3, factor=2, jitter=0.5, counted=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_copying_and_pickling_with_all_it_says(error, again):
    found = again(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert {name: str(value) for name, value in vars(found).items()} == {
        name: str(value) for name, value in vars(error).items()
    }


def test_publish_failures_count_and_tell_the_first_by_its_place_in_the_input():
    error = PublishFailures(["id-1"], {7: PublishTimeout("the seventh"), 3: Unroutable("the third")})
    assert str(error) == "2 of 3 messages were not confirmed; the first: the third"
    assert error.confirmed == ["id-1"]
    assert sorted(error.failed) == [3, 7]


def test_a_refusal_says_its_code_and_which_message():
    error = PublishRefused("no", code=404)
    assert (error.code, error.message) == (404, None)
    assert PublishRefused().code is None


def test_a_failure_keeps_its_cause():
    cause = KeyError("url")
    with pytest.raises(HardFailure) as caught:
        raise HardFailure("no url") from cause
    assert caught.value.__cause__ is cause
    assert caught.value.reason == "no url"


@pytest.mark.parametrize("kind", [SoftFailure, HardFailure])
def test_a_failure_needs_no_words(kind):
    assert kind().reason == ""
    assert str(kind()) == ""


@pytest.mark.parametrize("kind", [SoftFailure, HardFailure])
def test_a_reason_that_is_an_exception_becomes_its_text(kind):
    assert kind(ValueError("no url")).reason == "no url"


def test_a_failure_class_of_the_users_own_need_not_call_our_constructor():
    class Busy(SoftFailure):
        def __init__(self, service):
            self.service = service

    error = Busy("cards")
    assert (error.reason, error.retry_after, error.retry_max, error.counted) == ("", None, None, True)
    assert str(error) == "cards"


@pytest.mark.parametrize("wait", [2, 2.0, Decimal(2), timedelta(seconds=2)])
def test_c12_retry_after_takes_any_duration(wait):
    assert SoftFailure(retry_after=wait).retry_after == 2.0


def test_c12_zero_is_zero_and_not_the_default():
    error = SoftFailure(retry_after=0, retry_max=0, factor=0, jitter=0)
    assert (error.retry_after, error.retry_max, error.factor, error.jitter) == (0.0, 0, 0.0, 0.0)


@pytest.mark.parametrize("value", [-5, float("nan"), float("inf"), "30", True, 2**63])
def test_c12_a_retry_after_that_cannot_be_meant_is_refused_where_it_is_given(value):
    with pytest.raises(ValueError, match=r"^retry_after="):
        SoftFailure(retry_after=value)


@pytest.mark.parametrize("value", [-1, 1.5, "3", True])
def test_c12_a_retry_max_that_is_no_count_is_refused_where_it_is_given(value):
    with pytest.raises(ValueError, match=r"^retry_max="):
        SoftFailure(retry_max=value)


@pytest.mark.parametrize("given", [{"factor": -1}, {"factor": "2"}, {"jitter": 1.1}, {"jitter": True}])
def test_a_factor_or_jitter_out_of_range_is_refused(given):
    [name] = given
    with pytest.raises(ValueError, match=f"^{name}="):
        SoftFailure(retry_after=1, **given)


@pytest.mark.parametrize("given", [{"factor": 2}, {"jitter": 0.5}, {"factor": 0}])
def test_a_factor_or_jitter_with_nothing_to_apply_to_is_refused(given):
    with pytest.raises(ValueError, match="it applies to retry_after, and there is none"):
        SoftFailure(**given)


@pytest.mark.parametrize("value", ["no", 0, None])
def test_counted_is_true_or_false_and_nothing_that_passes_for_it(value):
    with pytest.raises(ValueError, match=r"^counted="):
        SoftFailure(counted=value)
