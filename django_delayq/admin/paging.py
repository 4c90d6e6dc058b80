"""Lists that stay quick however long they are: nothing is counted or walked through to its end.

Note [Where a page begins]
An address names the last row of the page before (`after`), or the first of the page behind (`before`; empty: the end),
by what the row was sorted by and its primary key, so that an index leads there. A number of a page would have all rows
before it read, and would skip or repeat rows where others come and go. A row that was edited meanwhile does not move
the place.

Note [In parts]
Rows that have no value to be sorted by come last in both directions, in the order of their primary keys. No index of
one table has them in that place where the value is another table's, and that one may have no row: so the rows with a
value, those whose value is null, and those without the other row are asked for one after the other, as far as needed.

Note [Found, then sorted]
A database that is asked for the first hundred rows in some order takes the filter's rows to be spread evenly over that
order, walks along it, and reads the whole table where they stand at its end. So few rows are sorted by what no index
has: they are found by the filter. Where another table's values filter, and leave more than are counted, nobody has
asked for an order, and the one by primary keys is that of an index.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import get_fields_from_path
from django.contrib.admin.views.main import ALL_VAR, ORDER_VAR, ChangeList
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import F, OrderBy, Q, QuerySet
from django.db.models.constants import LOOKUP_SEP
from django.db.models.functions import Coalesce
from django.db.models.sql.constants import INNER
from django.http import HttpRequest

#: Rows are counted up to this number; a longer table is long.
MOST_COUNTED = 10_000
#: Of schedules that are found too often so many are listed; a search for runs finds those of so many, and so many jobs.
MOST_FOUND = 1_000
AFTER, BEFORE = "after", "before"


def is_long(rows: QuerySet[Any], most: int | None = None) -> bool:
    """Say whether there are more rows than `most`, by default than are counted."""
    most = MOST_COUNTED if most is None else most
    return rows.order_by().values("pk")[most : most + 1].exists()


class Place(NamedTuple):
    """Where a row stands: in which part of the list, with which primary key, and with what it is sorted by."""

    part: int
    pk: Any
    value: Any

    def __str__(self) -> str:
        value = getattr(self.value, "isoformat", lambda: self.value)()
        return f"{self.part}.{self.pk}.{'' if value is None else value}"


class PagedChangeList(ChangeList):
    """A page of a list by one column. See Note [Where a page begins].

    `is_capped` says that there are more than the `result_count` that were counted, `is_unsorted` that they stand in the
    order of their primary keys, although the list has another one.
    """

    is_capped = is_unsorted = False
    first_page = previous_page = next_page = last_page = ""
    _wanted: tuple[str, str] | None = None
    #: How many rows there are, where that is known.
    _count: int | None = None

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return all rows that are asked for. Counts beside the filters are for lists that are not long."""
        for name in (AFTER, BEFORE):
            if name in self.params:
                self._wanted = name, self.params.pop(name)
                del self.filter_params[name]
        self.add_facets = self.add_facets and not is_long(self.root_queryset)
        return super().get_queryset(request, exclude_parameters)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return one column, and the primary key where it does not tell every two rows apart."""
        order = str(super().get_ordering(request, queryset)[0])
        name = order.removeprefix("-")
        self._sort_by(self._pk.name if name == "pk" else name, descending=order.startswith("-"))
        return [order] if self._unique else [order, "-pk" if self._descending else "pk"]

    def _sort_by(self, name: str, *, descending: bool = False) -> None:
        self._key, self._descending = name, descending
        self._field = get_fields_from_path(self.model, name)[-1]
        self._unique = self._field.unique and LOOKUP_SEP not in name

    def get_ordering_field_columns(self) -> dict[int, Any]:
        """Return the column that is sorted by: the one that was clicked last."""
        return {} if self.is_unsorted else dict([*super().get_ordering_field_columns().items()][:1])

    def get_results(self, request: HttpRequest) -> None:
        """Read a page, count as far as is counted, and find the addresses of the other pages."""
        count = self.queryset.order_by().values("pk")[: MOST_COUNTED + 1].count()
        self.is_capped = count > MOST_COUNTED
        self.can_show_all = count <= self.list_max_show_all
        size = self.list_max_show_all if self.show_all and self.can_show_all else self.list_per_page
        if self.is_capped and ORDER_VAR not in self.params and self._reads_all(request):
            self.is_unsorted = True
            self._sort_by(self._pk.name)
        self._count = None if self.is_capped else count
        places = self._turn(size) if count else []
        read = self.apply_select_related(self.root_queryset.order_by()).in_bulk([place.pk for place in places])
        rows = [read[place.pk] for place in places if place.pk in read]
        self.result_list: Any = rows
        self.result_count = min(count, MOST_COUNTED)
        self.multi_page = bool(self.previous_page or self.next_page)
        self.is_facets_optional = self.is_facets_optional and not self.is_capped
        # Django says the number beside the search where the two differ, and would leave out “more than”.
        self.full_result_count, self.show_full_result_count = (self.result_count if self.is_capped else None), False
        self.show_admin_actions = True
        self.paginator = Paginator(rows, max(1, size))

    def _reads_all(self, request: HttpRequest) -> bool:
        """Say whether sorting would read all that is asked for."""
        query = self.queryset.query
        joined = any(query.alias_refcount[name] and table.join_type == INNER for name, table in query.alias_map.items())
        return joined or self.lacks_values(request)

    def lacks_values(self, request: HttpRequest) -> bool:
        """Say whether hardly a row that is asked for has what the list is sorted by: all others would be read first."""
        return False

    @property
    def show_all_address(self) -> str:
        """Where all rows are on one page."""
        return self.get_query_string({ALL_VAR: ""})

    @property
    def _pk(self) -> Any:
        return self.lookup_opts.pk

    def _turn(self, size: int) -> list[Place]:
        """Return the places of the page that is asked for; of the nearest one where that would be empty."""
        name, text = self._wanted or (AFTER, "")
        place = self._read_place(text) if text else None
        backwards = name == BEFORE
        found, more = self._walk(place, size, backwards=backwards)
        if backwards and not more:  # the beginning
            backwards, place = False, None
            found, more = self._walk(None, size, backwards=False)
        elif place is not None and not found:  # what came after it is gone
            backwards, place = True, None
            found, more = self._walk(None, size, backwards=True)
        before, behind = (more, place is not None) if backwards else (place is not None, more)
        if found and before:
            self.first_page, self.previous_page = self.get_query_string(), self._address(BEFORE, found[0])
        if found and behind:
            self.next_page, self.last_page = self._address(AFTER, found[-1]), self._address(BEFORE, "")
        return found

    def _address(self, name: str, place: Place | str) -> str:
        return self.get_query_string({name: str(place)})

    def _walk(self, place: Place | None, size: int, *, backwards: bool) -> tuple[list[Place], bool]:
        """Return up to `size` places from this one on, in the order of the list, and whether more lie beyond them."""
        found: list[Place] = []
        descending = self._descending != backwards
        for number, rows in self._parts(backwards=backwards):
            if place is not None and (number > place.part if backwards else number < place.part):
                continue
            if place is not None and number == place.part:
                rows = self._beyond(rows, place, "lt" if descending else "gt")
            rows = self._in_order(rows, number, descending=descending)
            read = rows.values_list("pk", self._key)[: size + 1 - len(found)]
            found += [Place(number, pk, value) for pk, value in read]
            if len(found) > size or (place is None and len(found) == self._count):
                break
        shown = found[:size]
        return shown[::-1] if backwards else shown, len(found) > size

    def _in_order(self, rows: QuerySet[Any], part: int, *, descending: bool) -> QuerySet[Any]:
        names = ("pk",) if part else (self._key,) if self._unique else (self._key, "pk")
        return rows.order_by(*(self._ordered(name, descending) for name in names))

    def _parts(self, *, backwards: bool) -> Iterator[tuple[int, QuerySet[Any]]]:
        """Yield the parts with their numbers. See Note [In parts]."""
        relation = self._key.rpartition(LOOKUP_SEP)[0]
        absent, present = {f"{self._key}__isnull": True}, {f"{self._key}__isnull": False}
        parts: list[Callable[[], QuerySet[Any]]] = [lambda: self.queryset.filter(**present)]
        if relation:
            parts.append(lambda: self.queryset.filter(**absent, **{f"{relation}__isnull": False}))
            parts.append(lambda: self.without(relation, self.queryset))
        elif self._field.null:
            parts.append(lambda: self.queryset.filter(**absent))
        numbered = [*enumerate(parts)]
        for number, part in reversed(numbered) if backwards else numbered:
            yield number, part()

    def without(self, relation: str, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of these rows that have no other row of this relation."""
        return rows.filter(**{f"{relation}__isnull": True})

    def _beyond(self, rows: QuerySet[Any], place: Place, side: str) -> QuerySet[Any]:
        """Return what lies on that side of a place; the second condition is what an index is entered by."""
        behind_pk = Q(**{f"pk__{side}": place.pk})
        if place.part:
            return rows.filter(behind_pk)
        behind = Q(**{f"{self._key}__{side}": place.value})
        return rows.filter(behind if self._unique else behind | behind_pk, **{f"{self._key}__{side}e": place.value})

    def _ordered(self, name: str, descending: bool) -> OrderBy:
        found = F(name) if self.is_capped else Coalesce(F(name), F(name))
        return OrderBy(found, descending=descending)

    def _read_place(self, text: str) -> Place:
        """Return the place that an address names.

        Raises:
            IncorrectLookupParameters: It names none; Django shows the list from its beginning.
        """
        part, _, rest = text.partition(".")
        pk, _, value = rest.partition(".")
        try:
            number, key = int(part), self._pk.to_python(pk)
            wanted = None if number else self._field.to_python(value)
            self._pk.run_validators(key)
            self._field.get_db_prep_value(wanted, connections[self.queryset.db])
        except (ValueError, OverflowError, ValidationError):
            raise IncorrectLookupParameters from None
        if number not in range(3) or key is None or (number == 0 and wanted is None):
            raise IncorrectLookupParameters
        return Place(number, key, wanted)
