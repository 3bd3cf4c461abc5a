"""Row dataclasses, of which a page creates thousands, behave like frozen ones as long as nothing assigns to them."""

from dataclasses import replace

from crcr.decide.row_dataclass import row_dataclass


@row_dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    name: str
    number: int = 0


def test_equal_rows_are_one_element_of_a_set() -> None:
    assert {Cell(name="a"), Cell(name="a"), replace(Cell(name="a"), number=1)} == {
        Cell(name="a"),
        Cell(name="a", number=1),
    }
