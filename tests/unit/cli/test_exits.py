from __future__ import annotations

import pytest

import leveret
from leveret.cli import exits


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ConfigError", 2),
        ("WorkerDefinition", 2),
        ("AppNotFound", 2),
        ("NotSupported", 2),
        ("MissingExtra", 2),
        ("BadPayload", 2),
        ("BrokerError", 3),
        ("BrokerUnreachable", 3),
        ("AccessRefused", 3),
        ("QueueMismatch", 3),
        ("PublishRefused", 3),
        ("PublishTimeout", 3),
        ("StoreError", 4),
        ("NotFound", 5),
        ("Unroutable", 5),
    ],
)
def test_each_error_has_the_exit_code_that_says_what_kind_of_thing_went_wrong(name, code):
    assert exits.of(getattr(leveret, name)("it failed")) == code


def test_a_fault_of_leveret_shows_its_traceback_and_asks_for_a_report(capsys):
    code = exits.of_fault(raised_by("x = 1 / 0", exits.__file__))
    assert code == 70
    assert "ZeroDivisionError" in (told := capsys.readouterr().err)
    assert "fault in leveret itself" in told


def test_an_error_of_the_users_code_is_shown_from_its_own_first_line_on(capsys, tmp_path):
    code = exits.of_fault(raised_by("def f():\n    return 1 / 0\nf()", str(tmp_path / "shop.py")))
    told = capsys.readouterr().err
    assert code == 1
    assert told.splitlines()[1].startswith(f'  File "{tmp_path / "shop.py"}", line 3')
    assert "test_exits" not in told
    assert "fault in leveret" not in told


def test_an_installed_package_that_leveret_called_is_the_users_code_too(capsys):
    import sysconfig

    file = f"{sysconfig.get_path('purelib')}/shop/app.py"
    assert exits.of_fault(raised_by("1 / 0", file)) == 1
    assert exits.of_fault(raised_by("1 / 0", f"{sysconfig.get_path('purelib')}/rich/text.py")) == 70


def test_a_module_that_is_no_python_is_shown_where_it_is_wrong(capsys):
    try:
        compile("def f(:", "shop.py", "exec")
    except SyntaxError as error:
        exits.show_users(error)
    told = capsys.readouterr().err
    assert 'File "shop.py", line 1' in told
    assert "Traceback" not in told


def raised_by(source: str, file: str) -> Exception:
    """The error that *source* raises, as if it stood in *file* and leveret had called it."""
    try:
        exec(compile(source, file, "exec"), {})
    except ZeroDivisionError as error:
        # The frame of this test file would be the user's.
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError(source)
