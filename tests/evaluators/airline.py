"""The airline of tau-bench as an environment: its tables as published, its tools by what they are recorded to do."""

from __future__ import annotations

import ast
import copy
import json
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tests.shared import DATA

FOLDER = DATA / "tau1-airline"
Row = dict[str, Any]

EFFECTS = {
    **dict.fromkeys(("calculate", "think"), "none"),
    **dict.fromkeys(("get_user_details", "get_reservation_details", "list_all_airports", "search_direct_flight",
                     "search_onestop_flight"), "read"),
    **dict.fromkeys(("book_reservation", "cancel_reservation", "send_certificate", "transfer_to_human_agents",
                     "update_reservation_baggages", "update_reservation_flights", "update_reservation_passengers"),
                    "write"),
}  # fmt: skip
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas", "DEN": "Denver",
    "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix", "IAH": "Houston",
    "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte", "MSP": "Minneapolis", "DTW": "Detroit",
    "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip


@cache
def table(name: str) -> dict[str, Row]:
    return json.loads((FOLDER / f"{name}.json").read_text())


class Refused(Exception):
    """The tool's own error message."""


class Airline:
    """Rows are copied when they are changed, so a clone costs nothing."""

    sandboxed = True
    effects = EFFECTS

    def __init__(self, users: str = "env_users") -> None:
        self._users = users
        self.reset()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._changed: dict[tuple[str, str], Row] = {}
        return "", {}

    def clone(self) -> Airline:
        return copy.deepcopy(self)

    def state(self) -> Any:
        return {"/".join(key): row for key, row in self._changed.items()}

    def step(self, action: Mapping[str, Any]) -> tuple[str, float, bool, bool, dict[str, Any]]:
        tool: Callable[..., str] | None = getattr(self, f"_{action['name']}", None)
        if action["name"] not in EFFECTS or tool is None:
            return f"Unknown action {action['name']}", 0.0, False, False, {}
        try:
            return tool(**action["arguments"]), 0.0, False, False, {}
        except Refused as error:
            return f"Error: {error}", 0.0, False, False, {}

    # -- reading

    def _think(self, thought: str) -> str:
        return ""

    def _transfer_to_human_agents(self, summary: str) -> str:
        return "Transfer successful"

    def _list_all_airports(self) -> str:
        return json.dumps(AIRPORTS)

    def _calculate(self, expression: str) -> str:
        return str(round(float(_value(ast.parse(expression, mode="eval").body)), 2))

    def _get_user_details(self, user_id: str) -> str:
        return json.dumps(self._user(user_id))

    def _get_reservation_details(self, reservation_id: str) -> str:
        return json.dumps(self._reservation(reservation_id))

    def _search_direct_flight(self, origin: str, destination: str, date: str) -> str:
        found = [f for f in table("env_flights").values() if (f["origin"], f["destination"]) == (origin, destination)]
        return json.dumps([_leg(f, date) for f in found if _open(f, date)])

    def _search_onestop_flight(self, origin: str, destination: str, date: str) -> str:
        flights = table("env_flights").values()
        found = []
        for first in (f for f in flights if f["origin"] == origin):
            next_day = "+1" in first["scheduled_arrival_time_est"]
            day = f"2024-05-{int(date[-2:]) + 1}" if next_day else date
            for second in flights:
                joins = (second["origin"], second["destination"]) == (first["destination"], destination)
                early = first["scheduled_arrival_time_est"] > second["scheduled_departure_time_est"]
                if joins and not early and _open(first, date) and _open(second, day):
                    # the second leg is shown with the first day's seats and prices, as the recording has it
                    found.append([{**_leg(first, date), "date": date}, {**_leg(second, date), "date": day}])
        return json.dumps(found)

    # -- writing

    def _book_reservation(self, **given: Any) -> str:
        user = self._user(given["user_id"])
        people = len(given["passengers"])
        flights = [self._priced(f, given["cabin"], people) for f in given["flights"]]
        price = people * sum(f["price"] for f in flights) + 50 * given["nonfree_baggages"]
        price += 30 * people if given["insurance"] == "yes" else 0
        self._check_payment(user, given["payment_methods"], price)
        user = self._change("users", given["user_id"])
        for payment in given["payment_methods"]:
            method = user["payment_methods"][payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del user["payment_methods"][payment["payment_id"]]
        id = next(i for i in ("HATHAT", "HATHAU", "HATHAV") if not self._has("reservations", i))
        booked = {
            "reservation_id": id,
            **{k: given[k] for k in ("user_id", "origin", "destination", "flight_type", "cabin")},
            "flights": flights,
            "passengers": given["passengers"],
            "payment_history": given["payment_methods"],
            "created_at": "2024-05-15T15:00:00",
            **{k: given[k] for k in ("total_baggages", "nonfree_baggages", "insurance")},
        }
        self._changed["reservations", id] = copy.deepcopy(booked)
        user["reservations"].append(id)
        return json.dumps(booked)

    def _cancel_reservation(self, reservation_id: str) -> str:
        self._reservation(reservation_id)
        row = self._change("reservations", reservation_id)
        row["payment_history"] += [{**p, "amount": -p["amount"]} for p in row["payment_history"]]
        row["status"] = "cancelled"
        return json.dumps(row)

    def _update_reservation_passengers(self, reservation_id: str, passengers: list[Row]) -> str:
        if len(passengers) != len(self._reservation(reservation_id)["passengers"]):
            raise Refused("number of passengers does not match")
        row = self._change("reservations", reservation_id)
        row["passengers"] = passengers
        return json.dumps(row)

    def _update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> str:
        price = 50 * max(0, nonfree_baggages - self._reservation(reservation_id)["nonfree_baggages"])
        self._pay_update(reservation_id, payment_id, price)
        row = self._change("reservations", reservation_id)
        row |= {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
        return self._with_payment(row, payment_id, price)

    def _update_reservation_flights(self, reservation_id: str, cabin: str, flights: list[Row], payment_id: str) -> str:
        row = self._reservation(reservation_id)
        people = len(row["passengers"])
        chosen = []
        for flight in flights:
            kept = [f for f in row["flights"] if cabin == row["cabin"] and _same(f, flight)]
            known = {k: kept[0][k] for k in ("price", "origin", "destination")} if kept else None
            chosen.append({**flight, **known} if known else self._priced(flight, cabin, people))
        price = people * (sum(f["price"] for f in chosen) - sum(f["price"] for f in row["flights"]))
        self._pay_update(reservation_id, payment_id, price)
        row = self._change("reservations", reservation_id)
        row["flights"] = chosen
        return self._with_payment(row, payment_id, price)

    def _send_certificate(self, user_id: str, amount: float) -> str:
        self._user(user_id)
        methods = self._change("users", user_id)["payment_methods"]
        id = next(i for n in (3221322, 3221323, 3221324) if (i := f"certificate_{n}") not in methods)
        methods[id] = {"source": "certificate", "amount": amount, "id": id}
        return f"Certificate {id} added to user {user_id} with amount {amount}."

    # -- tables

    def _has(self, name: str, id: str) -> bool:
        return (name, id) in self._changed or id in self._table(name)

    def _table(self, name: str) -> dict[str, Row]:
        return table(self._users if name == "users" else "env_reservations")

    def _row(self, name: str, id: str) -> Row:
        return self._changed.get((name, id)) or self._table(name)[id]

    def _change(self, name: str, id: str) -> Row:
        return self._changed.setdefault((name, id), copy.deepcopy(self._row(name, id)))

    def _user(self, id: str) -> Row:
        if not self._has("users", id):
            raise Refused("user not found")
        return self._row("users", id)

    def _reservation(self, id: str) -> Row:
        if not self._has("reservations", id):
            raise Refused("reservation not found")
        return self._row("reservations", id)

    def _priced(self, flight: Row, cabin: str, people: int) -> Row:
        number, date = flight["flight_number"], flight["date"]
        known = table("env_flights").get(number)
        if known is None:
            raise Refused(f"flight {number} not found")
        if date not in known["dates"]:
            raise Refused(f"flight {number} not found on date {date}")
        if not _open(known, date):
            raise Refused(f"flight {number} not available on date {date}")
        day = known["dates"][date]
        if day["available_seats"][cabin] < people:
            raise Refused(f"not enough seats on flight {number}")
        return {**flight, "price": day["prices"][cabin], "origin": known["origin"], "destination": known["destination"]}

    def _check_payment(self, user: Row, payments: list[Row], price: float) -> None:
        for payment in payments:
            method = user["payment_methods"].get(payment["payment_id"])
            if method is None:
                raise Refused(f"payment method {payment['payment_id']} not found")
            if method["source"] != "credit_card" and method["amount"] < payment["amount"]:
                raise Refused(f"not enough balance in payment method {payment['payment_id']}")
        paid = sum(p["amount"] for p in payments)
        if paid != price:
            raise Refused(f"payment amount does not add up, total price is {price}, but paid {paid}")

    def _pay_update(self, reservation_id: str, payment_id: str, price: float) -> None:
        user_id = self._reservation(reservation_id)["user_id"]
        method = self._user(user_id)["payment_methods"].get(payment_id)
        if method is None:
            raise Refused("payment method not found")
        if method["source"] == "certificate":
            raise Refused("certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise Refused("gift card balance is not enough")
            self._change("users", user_id)["payment_methods"][payment_id]["amount"] -= price

    def _with_payment(self, row: Row, payment_id: str, price: float) -> str:
        if price:
            row["payment_history"].append({"payment_id": payment_id, "amount": price})
        return json.dumps(row)


def _open(flight: Row, date: str) -> bool:
    return flight["dates"].get(date, {}).get("status") == "available"


def _leg(flight: Row, date: str) -> Row:
    return {**{k: v for k, v in flight.items() if k != "dates"}, **flight["dates"].get(date, {})}


def _same(a: Row, b: Row) -> bool:
    return (a["flight_number"], a["date"]) == (b["flight_number"], b["date"])


_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand))
    assert isinstance(node, ast.Constant)
    return node.value  # type: ignore[return-value]
