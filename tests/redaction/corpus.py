"""A corpus of planted secrets and personal data, and of look-alikes that must stay.

`python -m tests.redaction.corpus` prints recall by kind and by place, and false positives by kind, as the
table in docs/governance.md has it.
"""

from __future__ import annotations

import base64
import json
import random
import string
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import stdnum.br.cpf
import stdnum.es.dni
import stdnum.fr.nir
import stdnum.iban
import stdnum.luhn
import stdnum.pl.pesel

from registry.tenant_policy import TenantPolicy
from services.proxy.redaction.pseudonyms import Pseudonyms
from services.proxy.redaction.redact import Redactor
from tests.shared import SHARED

_ALNUM = string.ascii_letters + string.digits
_FIRST = ("anna", "mia", "omar", "li", "jose", "kofi", "yuki", "ines", "lars", "zoe")
_LAST = ("berg", "silva", "okafor", "tanaka", "moreau", "novak", "khan", "rossi", "meyer", "haddad")


@dataclass(frozen=True)
class Planted:
    kind: str
    place: str
    secret: str
    record: dict[str, Any]
    """An event with the secret in it."""


def _chars(rng: random.Random, n: int, alphabet: str = _ALNUM) -> str:
    # a digit, an upper- and a lower-case letter at least, as random keys of this length have
    return "a1B" + "".join(rng.choice(alphabet) for _ in range(n - 3))


def _hex(rng: random.Random, n: int) -> str:
    return "".join(rng.choice("0123456789abcdef") for _ in range(n))


def _digits(rng: random.Random, n: int) -> str:
    return "".join(rng.choice(string.digits) for _ in range(n))


def _card(rng: random.Random) -> str:
    body = rng.choice(("4", "51", "55", "2221", "6011")) + _digits(rng, 20)
    return (body := body[:15]) + stdnum.luhn.calc_check_digit(body)


def _grouped_card(rng: random.Random) -> str:
    card = _card(rng)
    return " ".join(card[i : i + 4] for i in range(0, 16, 4))


def _iban(rng: random.Random) -> str:
    country, body = rng.choice((("DE", 18), ("NL", 0), ("FR", 0)))
    bban = {"DE": _digits(rng, body), "NL": "ABNA" + _digits(rng, 10), "FR": _digits(rng, 23)}[country]
    return country + stdnum.iban.calc_check_digits(country + "00" + bban) + bban


def _spaced_iban(rng: random.Random) -> str:
    iban = _iban(rng)
    return " ".join(iban[i : i + 4] for i in range(0, len(iban), 4))


def _ssn(rng: random.Random) -> str:
    return f"{rng.randint(100, 665):03d}-{rng.randint(1, 99):02d}-{rng.randint(1, 9999):04d}"


def _email(rng: random.Random) -> str:
    return f"{rng.choice(_FIRST)}.{rng.choice(_LAST)}{rng.randint(1, 99)}@{rng.choice(_LAST)}-mail.com"


def _nir(rng: random.Random) -> str:
    body = f"{rng.choice('12')}{rng.randint(50, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 95):02d}{_digits(rng, 6)}"
    return body + stdnum.fr.nir.calc_check_digits(body)


def _pesel(rng: random.Random) -> str:
    body = f"{rng.randint(50, 99)}{rng.randint(1, 12):02d}{rng.randint(1, 28):02d}{_digits(rng, 4)}"
    return body + stdnum.pl.pesel.calc_check_digit(body)


def _cpf(rng: random.Random) -> str:
    body = _digits(rng, 9)
    return stdnum.br.cpf.format(body + stdnum.br.cpf._calc_check_digits(body + "00"))


def _dni(rng: random.Random) -> str:
    body = _digits(rng, 8)
    return body + stdnum.es.dni.calc_check_digit(body)


def _jwt(rng: random.Random) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return (
        f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': _digits(rng, 10), 'iat': 1516239022})}.{_chars(rng, 43)}"
    )


def _pem(rng: random.Random) -> str:
    lines = "\n".join(_chars(rng, 64) for _ in range(6))
    return f"-----BEGIN PRIVATE KEY-----\n{lines}\n-----END PRIVATE KEY-----"


Make = Callable[[random.Random], str]

KINDS: dict[str, tuple[Make, str]] = {
    "openai key": (lambda r: "sk-proj-" + _chars(r, 48), "use {} for the call"),
    "anthropic key": (lambda r: "sk-ant-api03-" + _chars(r, 80), "export ANTHROPIC={}"),
    "github token": (lambda r: "ghp_" + _chars(r, 36), "clone with {}"),
    "github fine-grained": (lambda r: "github_pat_" + _chars(r, 60), "token {}"),
    "gitlab token": (lambda r: "glpat-" + _chars(r, 20), "{} works"),
    "slack token": (lambda r: "xoxb-" + _digits(r, 12) + "-" + _chars(r, 24), "bot {}"),
    "stripe key": (lambda r: "sk_live_" + _chars(r, 24), "charge with {}"),
    "aws key id": (lambda r: "AKIA" + "".join(r.choice(string.ascii_uppercase + string.digits) for _ in range(16)),
                   "id {}"),
    "aws secret": (lambda r: _chars(r, 40, _ALNUM + "+/"), "aws_secret_access_key = {}"),
    "google key": (lambda r: "AIza" + _chars(r, 35), "maps {}"),
    "azure key": (lambda r: _chars(r, 86) + "==", "AccountName=x;AccountKey={};EndpointSuffix=core"),
    "hugging face": (lambda r: "hf_" + _chars(r, 34), "login {}"),
    "npm token": (lambda r: "npm_" + _chars(r, 36), "//registry/:_authToken={}"),
    "sendgrid": (lambda r: f"SG.{_chars(r, 22)}.{_chars(r, 43)}", "mail by {}"),
    "telegram": (lambda r: f"{_digits(r, 10)}:AA{_chars(r, 33)}", "bot {} answers"),
    "groq key": (lambda r: "gsk_" + _chars(r, 52), "{} is fast"),
    "own key": (lambda r: "evo_" + _chars(r, 43), "set {}"),
    "jwt": (_jwt, "cookie was {}"),
    "private key": (_pem, "here it is:\n{}\nthanks"),
    "bearer": (lambda r: _chars(r, 32), "curl -H 'Authorization: Bearer {}' x"),
    "url password": (lambda r: _chars(r, 14), "postgres://app:{}@db.internal:5432/prod"),
    "password": (lambda r: _chars(r, 10) + "!", "my password is {} and it fails"),
    "password in code": (lambda r: _chars(r, 12), "db_password = '{}'"),
    "api key beside word": (lambda r: _chars(r, 32), "please use this api key {} today"),
    "hex secret": (lambda r: _hex(r, 40), "client_secret: {}"),
    "card": (_card, "charge {} please"),
    "card in groups": (_grouped_card, "the card is {} ok"),
    "iban": (_iban, "transfer to {} now"),
    "iban in groups": (_spaced_iban, "pay {} by Friday"),
    "ssn": (_ssn, "it is {} for the form"),
    "ssn bare": (lambda r: _ssn(r).replace("-", ""), "my social security number is {}"),
    "e-mail": (_email, "write to {} soon"),
    "phone international": (lambda r: f"+49 30 {_digits(r, 7)}".replace("30 0", "30 2"), "ring {} at noon"),
    "phone US": (lambda r: f"({r.randint(201, 989)}) {r.randint(200, 999)}-{_digits(r, 4)}",
                 "it is {} thanks"),
    "phone GB": (lambda r: f"020 7946 {_digits(r, 4)}", "my phone number is {}"),
    "ipv4": (lambda r: f"{r.randint(20, 99)}.{r.randint(1, 250)}.{r.randint(1, 250)}.{r.randint(1, 250)}", 
             "from {} again"),
    "ipv6": (lambda r: f"2001:db8:{_hex(r, 3)}1::{_hex(r, 3)}2:8329", "from {} again"),
    "mac": (lambda r: ":".join(_hex(r, 2) for _ in range(5)) + ":af", "device {} joined"),
    "fr nir": (_nir, "numéro {} reçu"),
    "pl pesel": (_pesel, "PESEL {}"),
    "br cpf": (_cpf, "meu CPF {}"),
    "es dni": (_dni, "el {} es correcto"),
    "gb nino": (lambda r: f"AB{_digits(r, 6)}C", "it is {} there"),
    "passport": (lambda r: f"X{_digits(r, 8)}", "passport number: {}"),
    "date of birth": (lambda r: f"{r.randint(1, 28)} March {r.randint(1940, 2005)}", "born on {} in Ghent"),
    "cvv": (lambda r: f"{r.randint(101, 999)}", "cvv: {}"),
}  # fmt: skip

PLACES: dict[str, Callable[[str, str], dict[str, Any]]] = {
    "message": lambda text, _: _event(o={"messages": [_message("user", text)]}),
    "answer": lambda text, _: _event(a={"messages": [_message("assistant", text)]}),
    "arguments": lambda text, _: _call({"note": text, "n": 1}, None),
    "arguments text": lambda text, _: _call({"note": text}, json.dumps({"note": text}, indent=1)),
    "escaped text": lambda text, _: _event(y={"status": "ok", "result": json.dumps({"note": text + " ü"})}),
    "malformed arguments": lambda text, _: _call('{"note": ' + json.dumps(text), None),
    "error": lambda text, _: _event(y={"status": "error", "error": {"type": "http_401", "message": text}}),
    "header": lambda text, _: _event(ext={"headers": {"x-note": text, "accept": "*/*"}}),
    "tag": lambda text, _: _event(m={"tags": {"note": text}}),
    "key": lambda text, _: _event(y={"status": "ok", "result": {text: True}}),
    "base64": lambda text, _: _event(y={"status": "ok", "result": _b64(text)}),
    "percent": lambda text, _: _event(y={"status": "ok", "result": "".join(f"%{b:02X}" for b in text.encode())}),
    "split": lambda text, secret: _event(o={"messages": [_split(text, secret)]}),
}


def _event(**fields: Any) -> dict[str, Any]:
    return {"atdp": "1.0", "record": "event", "id": "e", "kind": "llm_call", "y": {"status": "ok"}, **fields}


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _call(arguments: Any, raw: str | None) -> dict[str, Any]:
    part = {"type": "tool_call", "id": "call_1", "name": "note", "arguments": arguments}
    return _event(a={"messages": [{"role": "assistant", "parts": [part if raw is None else {**part, "raw": raw}]}]})


def _split(text: str, secret: str) -> dict[str, Any]:
    """The secret cut in its middle, over two parts of one message."""
    at = text.index(secret) + len(secret) // 2
    return {"role": "user", "parts": [{"type": "text", "content": piece} for piece in (text[:at], text[at:])]}


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def planted(seed: int = 1, each: int = 3, only: str | None = None) -> Iterator[Planted]:
    """Every kind (or one) in every place, `each` times."""
    for kind, (make, template) in KINDS.items():
        if only not in (None, kind):
            continue
        rng = random.Random(f"{seed}/{kind}")
        for place, build in PLACES.items():
            for _ in range(each):
                secret = make(rng)
                yield Planted(kind, place, secret, build(template.format(secret), secret))


BENIGN: dict[str, Make] = {
    "order number": lambda r: f"order #{_digits(r, 11)} and W{_digits(r, 7)}",
    "order words": lambda r: f"Your order number is {_digits(r, 10)}, item {_digits(r, 12)}.",
    "uuid": lambda r: f"id {uuid.UUID(int=r.getrandbits(128), version=4)} done",
    "sha256": lambda r: f"sha256:{_hex(r, 64)}",
    "git": lambda r: f"commit {_hex(r, 40)} on main",
    "timestamp": lambda r: f"2026-0{r.randint(1, 9)}-1{r.randint(0, 9)}T1{r.randint(0, 9)}:22:33.{_digits(r, 3)}Z",
    "epoch": lambda r: f'{{"at": 17{_digits(r, 8)}, "ms": 17{_digits(r, 11)}, "ns": 17{_digits(r, 17)}}}',
    "call id": lambda r: f"call_{_chars(r, 24)} toolu_{_chars(r, 22)} chatcmpl-{_chars(r, 29)}",
    "event id": lambda r: f"ev_{uuid.UUID(int=r.getrandbits(128), version=4)}",
    "price": lambda r: f"${r.randint(1, 9)},{_digits(r, 3)}.{_digits(r, 2)} or {_digits(r, 3)}.50 EUR",
    "version": lambda r: f"torch=={r.randint(1, 9)}.{r.randint(0, 20)}.{r.randint(0, 9)}+cpu v1.{r.randint(0, 9)}.2.3",
    "tracking": lambda r: f"tracking 1Z{_digits(r, 6)}A{_digits(r, 9)} and {_digits(r, 20)}",
    "flight": lambda r: (
        f"HAT{_digits(r, 3)} from JFK to SEA, reservation {_chars(r, 6).upper()}, gate B{r.randint(1, 40)}"
    ),
    "float": lambda r: f"loss {r.random():.16f} at step {_digits(r, 6)}",
    "coordinates": lambda r: f"{r.uniform(-90, 90):.7f}, {r.uniform(-180, 180):.7f}",
    "isbn": lambda r: f"ISBN 978-3-16-{_digits(r, 6)}-0",
    "code": lambda r: (
        f"def f(token: str, password: str | None = None) -> int:\n    return tokens[{r.randint(0, 9)}] + len(key)"
    ),
    "code config": lambda r: (
        "password = os.environ['DB_PASSWORD']\napi_key = settings.api_key\nsecret = get_secret('a/b')"
    ),
    "schema": lambda r: (
        '{"type": "object", "properties": {"password": {"type": "string"}, "token_count": {"type":'
        ' "integer"}}, "required": ["password"]}'
    ),
    "usage": lambda r: f'{{"prompt_tokens": {_digits(r, 4)}, "max_tokens": 1024, "token_id": {_digits(r, 5)}}}',
    "prose": lambda r: (
        "Please reset my password; the token expired and the secret to success is a key account manager."
    ),
    "placeholder": lambda r: "OPENAI_API_KEY=<your-api-key> password: ${DB_PASSWORD} token: YOUR_TOKEN_HERE",
    "traceback": lambda r: (
        f'File "/usr/lib/python3.11/site-packages/x/y_{r.randint(1, 99)}.py", line {_digits(r, 3)}, in run'
    ),
    "url": lambda r: f"https://github.com/org/repo/blob/{_hex(r, 40)}/src/main_{_digits(r, 3)}.py#L{_digits(r, 3)}",
    "clone": lambda r: "git clone git@github.com:org/repo.git && ssh -p 22 host",
    "image": lambda r: "data:image/png;base64," + base64.b64encode(r.randbytes(600)).decode(),
    "decorator": lambda r: "@app.route('/x')\n@pytest.mark.parametrize('a', [1, 2])\nasync def x(): ...",
    "loopback": lambda r: "listening on 127.0.0.1:8400 and [::1]:8400, 0.0.0.0",
    "time": lambda r: f"from 09:30:00 to 1{r.randint(0, 9)}:45:10, 12:30",
    "size": lambda r: f"{_digits(r, 9)} bytes in {_digits(r, 5)} files, {r.randint(1, 99)}%",
}


def benign(seed: int = 2, each: int = 40) -> Iterator[tuple[str, str]]:
    """(kind, text) of what must stay as it is."""
    for kind, make in BENIGN.items():
        rng = random.Random(f"{seed}/{kind}")
        for _ in range(each):
            yield kind, make(rng)


def told(secret: str, stored: str) -> bool:
    """Does the stored text still tell the secret, in the clear, in base64 at any alignment, or percent-encoded?"""
    if (
        secret in stored
        or json.dumps(secret)[1:-1] in stored
        or "".join(f"%{b:02X}" for b in secret.encode()) in stored
    ):
        return True
    return any(form in stored for form in encodings(secret))


def encodings(secret: str) -> list[str]:
    """What base64 makes of the secret, whatever precedes it; only what is long enough to mean it."""
    forms = []
    for lead in range(3):
        whole = base64.b64encode(b"\0" * lead + secret.encode()).decode().rstrip("=")
        form = whole[(4 if lead else 0) : len(whole) - 2]
        if len(form) >= 8:
            forms.append(form)
    return forms


def redactor(**policy: Any) -> Redactor:
    return Redactor(TenantPolicy(**policy), Pseudonyms(b"p" * 32))


def trajectories() -> Iterator[tuple[str, Any]]:
    """(file, record) of real trajectories, as negatives: their personal data is made up and stays countable."""
    for path in sorted(SHARED.glob("data/*/*.json*")) + sorted(SHARED.glob("data/*/*.traj")):
        text = path.read_text()
        records = [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]
        yield from ((f"{path.parent.name}/{path.name}", record) for record in records)


def main() -> None:
    """Print the tables."""
    rules = redactor()
    hits: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for case in planted(each=int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        stored = json.dumps(rules.redact(case.record).record, ensure_ascii=False)
        for group in (("kind", case.kind), ("place", case.place), ("all", "all")):
            total[group] += 1
            hits[group] += not told(case.secret, stored)
    print("| planted | cases | recall |\n|---|---|---|")
    for group, count in total.items():
        if group[0] != "kind" or hits[group] < count:
            print(f"| {group[0]}: {group[1]} | {count} | {hits[group] / count:.4f} |")
    wrong: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for kind, text in benign():
        seen[kind] += 1
        wrong[kind] += rules.redact(_event(y={"status": "ok", "result": text})).changed
    print(f"\nlook-alikes: {sum(wrong.values())} of {sum(seen.values())} changed {dict(+wrong)}")
    found: Counter[str] = Counter()
    size = 0
    for _, record in trajectories():
        size += len(json.dumps(record))
        found.update(rules.redact({"ext": {"record": record}}).entities)
    print(f"\nreal trajectories: {size / 1e6:.1f} MB, findings {dict(found)}")


if __name__ == "__main__":
    main()
