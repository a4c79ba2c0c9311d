"""docs/requirements.md is complete, current and honest."""

from tests import requirements


def test_every_requirement_has_a_test_or_a_stated_reason():
    tests, still_open, reasons = (
        requirements.marked_tests(),
        requirements.notes("open"),
        requirements.notes("reason"),
    )
    silent = [
        requirement
        for requirement in requirements.catalogue()
        if requirement not in tests and requirement not in still_open and requirement not in reasons
    ]
    assert silent == []


def test_nothing_is_called_open_or_untestable_that_has_a_test():
    tests = requirements.marked_tests()
    assert [each for each in requirements.notes("reason") if each in tests] == []


def test_every_id_of_the_three_families_that_a_test_names_exists():
    known = requirements.catalogue()
    unknown = [
        each for each in requirements.marked_tests() if each[:2] in ("Q-", "C-", "F-") and each not in known
    ]
    assert unknown == []


def test_the_page_is_current():
    assert requirements.PAGE.read_text() == requirements.render(), "run: python -m tests.requirements --write"
