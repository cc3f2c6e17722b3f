from __future__ import annotations

import sys

import pytest

from leveret import AppNotFound, Leveret
from leveret.runtime.loading import load_app


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into the working directory, and forgets it afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    before = set(sys.modules)

    def write(name: str, source: str) -> None:
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


AN_APP = "from leveret import Leveret\n{} = Leveret('shop', broker='memory://')\n"


def test_an_app_is_found_in_the_working_directory(module):
    module("shop_found", AN_APP.format("app"))
    assert isinstance(load_app("shop_found:app"), Leveret)


def test_an_app_in_a_package_is_found(module):
    module("shop_package/__init__", "")
    module("shop_package/main", AN_APP.format("app"))
    assert load_app("shop_package.main:app").namespace == "shop"


def test_another_name_is_told_with_the_command_to_run(module, tmp_path):
    module("shop_named", AN_APP.format("application"))
    with pytest.raises(AppNotFound) as refused:
        load_app("shop_named:app")
    told = str(refused.value)
    assert f'module shop_named ({tmp_path / "shop_named.py"}) was imported, but has no "app"' in told
    assert 'It holds one Leveret, named "application". Run:  leveret run shop_named:application' in told


def test_of_several_apps_all_are_named(module):
    module("shop_several", AN_APP.format("one") + AN_APP.format("two"))
    with pytest.raises(AppNotFound, match="It holds one, two"):
        load_app("shop_several:app")


def test_what_is_no_app_is_told_with_its_type(module):
    module("shop_function", "def app(): ...\n")
    with pytest.raises(AppNotFound, match=r"no Leveret; it is of type function\. It holds no Leveret"):
        load_app("shop_function:app")


@pytest.mark.parametrize(
    ("target", "meant"),
    [
        ("shop", "shop:app"),
        ("shop.py:app", "shop:app"),
        ("src/shop.py:main", "src.shop:main"),
        (":app", "shop:app"),
    ],
)
def test_a_file_or_half_a_target_is_answered_with_the_right_form(module, target, meant):
    with pytest.raises(AppNotFound, match=f"Perhaps:  leveret run {meant}"):
        load_app(target)


def test_a_module_that_is_not_there_is_told_with_the_one_that_was_meant(module):
    module("shop_misspelt", "")
    with pytest.raises(
        AppNotFound, match=r"no module shop_mispelt, .*Did you mean:  leveret run shop_misspelt:app"
    ):
        load_app("shop_mispelt:app")


def test_a_module_that_imports_a_missing_one_raises_its_own_error(module):
    module("shop_incomplete", "import nothing_of_that_name\n")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        load_app("shop_incomplete:app")


def test_an_error_inside_the_module_is_left_as_it_is(module):
    module("shop_failing", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        load_app("shop_failing:app")


def test_a_script_that_ends_the_process_is_told_to_guard_its_last_lines(module):
    module("shop_script", "raise SystemExit(3)\n")
    with pytest.raises(AppNotFound, match=r"SystemExit: 3.*__main__"):
        load_app("shop_script:app")
