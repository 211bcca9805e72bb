"""Credentials: the forms in which providers issue keys, and values that stand next to a word for a secret.

Issued keys are long runs without blanks, so only such runs are compared with their forms; values beside a word
are looked for only where the word stands.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator

from services.proxy.redaction.findings import Finding, apart, entropy
from services.proxy.redaction.shape import Shape

_ISSUED: tuple[tuple[str, str], ...] = (
    ("sk-", r"\bsk-(?=[\w-]*\d)[A-Za-z0-9_-]{16,}"),  # OpenAI, Anthropic, OpenRouter, DeepSeek, Langfuse, LiteLLM
    ("_live_", r"\b[srp]k_live_[A-Za-z0-9]{10,}"),  # Stripe
    ("_test_", r"\b[srp]k_test_[A-Za-z0-9]{10,}"),
    ("whsec_", r"\bwhsec_[A-Za-z0-9+/=]{20,}"),
    ("ghp_", r"\bghp_[A-Za-z0-9]{30,}"),
    ("gho_", r"\bgho_[A-Za-z0-9]{30,}"),
    ("ghu_", r"\bghu_[A-Za-z0-9]{30,}"),
    ("ghs_", r"\bghs_[A-Za-z0-9]{30,}"),
    ("ghr_", r"\bghr_[A-Za-z0-9]{30,}"),
    ("github_pat_", r"\bgithub_pat_\w{22,}"),
    ("gl", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|soat|agent|imt)-[A-Za-z0-9_-]{20,}"),  # GitLab
    ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),  # Slack
    ("xapp-", r"\bxapp-\d-[A-Za-z0-9-]{10,}"),
    ("hooks.slack.com/", r"hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,}"),
    ("discord", r"discord(?:app)?\.com/api/webhooks/\d{15,}/[A-Za-z0-9_-]{40,}"),
    ("AKIA", r"\bAKIA[A-Z0-9]{16}\b"),  # AWS
    ("ASIA", r"\bASIA[A-Z0-9]{16}\b"),
    ("ABIA", r"\bABIA[A-Z0-9]{16}\b"),
    ("AIza", r"\bAIza[A-Za-z0-9_-]{35}"),  # Google
    ("ya29.", r"\bya29\.[A-Za-z0-9_-]{20,}"),
    ("GOCSPX-", r"\bGOCSPX-[A-Za-z0-9_-]{20,}"),
    ("1//0", r"\b1//0[A-Za-z0-9_-]{30,}"),
    ("AccountKey=", r"AccountKey=([A-Za-z0-9+/=]{40,})"),  # Azure
    ("sig=", r"\bsig=([A-Za-z0-9%+/=]{30,})"),
    ("Q~", r"\b[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{31,34}"),
    ("X-Amz-", r"X-Amz-(?:Signature|Credential|Security-Token)=([^&\s\"']{16,})"),
    ("hf_", r"\bhf_[A-Za-z0-9]{30,}"),
    ("npm_", r"\bnpm_[A-Za-z0-9]{30,}"),
    ("pypi-", r"\bpypi-[A-Za-z0-9_-]{30,}"),
    ("SG.", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),  # SendGrid
    ("key-", r"\bkey-[0-9a-f]{32}\b"),  # Mailgun
    ("-us", r"\b[0-9a-f]{32}-us\d{1,2}\b"),  # Mailchimp
    ("AC", r"\bAC[0-9a-f]{32}\b"),  # Twilio
    ("SK", r"\bSK[0-9a-f]{32}\b"),
    ("_v1_", r"\bdo[opr]_v1_[a-f0-9]{60,}"),  # DigitalOcean
    ("shp", r"\bshp(?:at|ca|pa|ss)_[A-Za-z0-9]{30,}"),  # Shopify
    ("sq0", r"\bsq0[a-z]{3}-[A-Za-z0-9_-]{20,}"),  # Square
    ("EAAA", r"\bEAAA[A-Za-z0-9_-]{56,}"),
    (":AA", r"\b\d{8,10}:AA[A-Za-z0-9_-]{32,}"),  # Telegram
    ("dapi", r"\bdapi[0-9a-f]{32}\b"),  # Databricks
    ("gsk_", r"\bgsk_[A-Za-z0-9]{30,}"),  # Groq
    ("xai-", r"\bxai-[A-Za-z0-9]{40,}"),
    ("pplx-", r"\bpplx-[A-Za-z0-9]{32,}"),
    ("r8_", r"\br8_[A-Za-z0-9]{30,}"),  # Replicate
    ("tvly-", r"\btvly-[A-Za-z0-9-]{20,}"),
    ("lin_api_", r"\blin_api_[A-Za-z0-9]{30,}"),
    ("ntn_", r"\bntn_[A-Za-z0-9]{40,}"),  # Notion
    ("secret_", r"\bsecret_[A-Za-z0-9]{40,}"),
    ("figd_", r"\bfigd_[A-Za-z0-9_-]{30,}"),
    ("pat", r"\bpat[A-Za-z0-9]{14}\.[a-f0-9]{40,}"),  # Airtable
    ("ATATT3", r"\bATATT3[A-Za-z0-9_=-]{50,}"),  # Atlassian
    ("dckr_pat_", r"\bdckr_pat_[A-Za-z0-9_-]{20,}"),
    ("hvs.", r"\bhvs\.[A-Za-z0-9_-]{20,}"),  # Vault
    (".atlasv1.", r"\b[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{40,}"),  # Terraform
    ("sntry", r"\bsntry[su]_[A-Za-z0-9_=+/-]{30,}"),  # Sentry
    ("NRAK-", r"\bNRAK-[A-Z0-9]{20,}"),  # New Relic
    ("dp.", r"\bdp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.]{30,}"),  # Doppler
    ("pscale_", r"\bpscale_(?:tkn|pw|oauth)_[A-Za-z0-9_.-]{30,}"),
    ("glsa_", r"\bglsa_[A-Za-z0-9_]{30,}"),  # Grafana
    ("glc_", r"\bglc_[A-Za-z0-9+/=]{30,}"),
    ("HRKU-", r"\bHRKU-[A-Za-z0-9_-]{30,}"),  # Heroku
    ("AGE-SECRET-KEY-", r"\bAGE-SECRET-KEY-1[A-Z0-9]{50,}"),
    ("evo_", r"\bevo_[A-Za-z0-9_-]{40,}"),  # this gateway's own
)
_ISSUER = re.compile("|".join(re.escape(literal) for literal, _ in (*_ISSUED, ("eyJ", ""))))
_COMPILED = tuple((literal, re.compile(apart(pattern))) for literal, pattern in _ISSUED)

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----"
    r"(?:.{1,16000}?-----END [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----|[A-Za-z0-9+/=\s\\:,-]*)",
    re.DOTALL,
)
"""Up to its end; a key cut off before that, as far as it goes. Escaped line ends (`\\n`) are part of it."""

_PLAIN = re.compile(r"[0-9a-fTZ:.+_-]+")
"""Hexadecimal identifiers and times: no issuer's key is made of these alone."""
_JWT = re.compile(r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?")
_URL_PASSWORD = re.compile(r"://[^\s:/@\"'<>]{0,128}:([^\s\"'<>/]{1,256})@(?=[\w\[.%-])")
_BEARER = re.compile(r"(?:bearer|token|apikey)[ \t]+((?=[^\s\"']*\d)[a-z0-9._~+/=-]{16,})")
_BASIC = re.compile(r"(?i)basic[ \t]+([A-Za-z0-9+/]{6,}={0,2})")

_STEMS = ("passw", "passphrase", "passcode", "pwd", "secret", "token", "key", "credential", "cookie", "kennwort",
          "contrase", "mot de passe")  # fmt: skip
"""What a name for a secret contains, in lower case."""
_NAME_BEFORE = re.compile(r"[\w.-]{0,40}$")
_NAME_AFTER = re.compile(r"[\w.-]{0,40}")
_KEY_NAME = re.compile(r"(?:api|access|private|account|auth|secret|signing|encryption|client|master|service)[_ -]?key")
_ASSIGNED = re.compile(
    r"[\"'`*]{0,2}\s{0,3}(?::=|=>|[:=]|\b(?:is|ist|es|est)\b:?)\s{0,3}"
    r"(\\?[\"'`])?((?(1)[^\"'`\n]{4,256}|[^\s\"'`,;<>{}()\[\]]{4,256}))"
)
"""Behind a name: `= value`, `": "value"`, ` is value`; groups: the quote, the value."""

_NOT_SECRET_NAME = re.compile(
    r"(?:ids?|names?|types?|counts?|limits?|urls?|uris?|paths?|files?|length|size|usage|expir\w*|policy|hint"
    r"|field|header|param\w*|ttl|used|budget|manager|ring|board|words?|tokens|keys)$"
)
_COMPOUND = re.compile(r"\w[_.-]\w")
_PASSWORD_NAME = re.compile(r"passw|passphrase|passcode|pwd|kennwort|contrase|mot de passe")
_PLACEHOLDER = re.compile(
    r"(?i)^(?:<[\w -]{0,40}>|\[[\w -]{0,40}\]|[{]{1,2}[\w .-]{0,40}[}]{1,2}|\$[\w({][\w .:})-]{0,40}|%\w{0,40}%?"
    r"|[*x•.#_-]+|(?:your|my|some|the|a|an|example|dummy|test|sample)?[ _-]?(?:api|access|secret|private)?[ _-]?"
    r"(?:password|passwd|pwd|secret|token|key|value|string|credentials?)(?:[ _-]?here)?"
    r"|null|none|nil|true|false|undefined|required|optional|invalid|incorrect|wrong|missing|expired|reset|changed"
    r"|redacted|\.\.\.|str(?:ing)?|int|bool|bytes|bearer|basic)[.!?,;:]*$"
)
_CODE_CALL = re.compile(r"^\w+(?:\.\w+)*[(\[]|^(?:self|os|process|request|config|settings|args)\.")
_CODE_PATH = re.compile(r"[a-z]{4,}[/_-][a-z]{3,}|^[/.]")
"""Paths and identifiers of several words: long, mixed, and no secret."""

_NEAR_CHARS = 44
_NEAR = re.compile(
    r"(?<![\w/+.-])((?=[A-Za-z0-9+/_=~.-]*\d)(?=[A-Za-z0-9+/_=~.-]*[A-Z])(?=[A-Za-z0-9+/_=~.-]*[a-z])"
    r"[A-Za-z0-9+/_=~-]{20,})"
)
_HEX = re.compile(r"(?<![\w/+.-])([0-9a-fA-F]{32,128})(?![\w-])")
_PIN = re.compile(r"pin(?<!\wpin)(?:[ -]?(?:code|number))?\b[\"']?\s{0,2}(?:is|:|=)?\s{0,2}[\"']?(\d{4,8})\b")
_CVV = re.compile(r"[cs](?<!\w.)(?:vv2?|vc2?|sc|ecurity code)\b\D{0,12}?(\d{3,4})\b")
_MIN_ENTROPY = 3.2
"""Bits a character: random base64 of 20 characters has about 4, an identifier made of words below 3."""


def placeholder(value: str) -> bool:
    """Does a value only say that a secret belongs here?"""
    return _PLACEHOLDER.match(value) is not None


def issued(run: str, offset: int) -> Iterator[Finding]:
    """Keys of known issuers in a run without blanks that begins at `offset`."""
    if _PLAIN.fullmatch(run) or _ISSUER.search(run) is None:
        return
    for literal, pattern in _COMPILED:
        if literal in run:
            for match in pattern.finditer(run):
                start, end = match.span(1 if pattern.groups else 0)
                yield Finding(offset + start, offset + end, "API_KEY")
    if "eyJ" in run:
        for match in _JWT.finditer(run):
            yield Finding(offset + match.start(), offset + match.end(), "JWT")


def find(text: str, lower: str, shape: Shape) -> Iterator[Finding]:
    """Other credentials in `text`; `lower` is the same text in lower case."""
    if "PRIVATE KEY" in text:
        yield from _matches(_PRIVATE_KEY, text, "PRIVATE_KEY")
    if "://" in text:
        for match in _URL_PASSWORD.finditer(text):
            if not placeholder(match[1]):
                yield Finding(*match.span(1), "CONNECTION_STRING")
    if (shape.long or not text.isascii()) and ("bearer" in lower or "token" in lower or "apikey" in lower):
        yield from _matches(_BEARER, lower, "TOKEN")
    if "basic" in lower:
        yield from (Finding(*m.span(1), "CREDENTIAL") for m in _BASIC.finditer(text) if _is_basic(m[1]))
    if shape.triple:
        if "pin" in lower:
            yield from _matches(_PIN, lower, "PIN")
        if "cv" in lower or "csc" in lower or "security code" in lower:
            yield from _matches(_CVV, lower, "CVV")
    if not spoken_of(lower):
        return
    seen = -1
    for start, end in _names(lower):
        if end != seen:
            yield from _beside(text, lower[start:end], end)
        seen = end


def spoken_of(lower: str) -> bool:
    """Might one of `_STEMS` be in the text? Unrolled: this is asked of every text."""
    return (
        "key" in lower
        or "token" in lower
        or "secret" in lower
        or "pass" in lower
        or "pwd" in lower
        or "credential" in lower
        or "cookie" in lower
        or "kennwort" in lower
        or "contrase" in lower
    )


def _names(lower: str) -> Iterable[tuple[int, int]]:
    """Spans of the names that speak of a secret, in order."""
    spans = set()
    for stem in _STEMS:
        at = lower.find(stem)
        while at >= 0:
            before = _NAME_BEFORE.search(lower[max(0, at - 40) : at])
            after = _NAME_AFTER.match(lower, at)
            end = after.end() if after else at + len(stem)
            start = at - len(before[0]) if before else at
            if start >= 4 and lower[start - 1] == " " and stem == "key":  # "api key"
                start = lower.rfind(" ", 0, start - 1) + 1
            spans.add((start, end))
            at = lower.find(stem, end)
    return sorted(spans)


def _beside(text: str, name: str, end: int) -> Iterator[Finding]:
    """A secret behind the name that ends here."""
    if _COMPOUND.search(name) and _NOT_SECRET_NAME.search(name) and not _PASSWORD_NAME.search(name):
        return  # such as `prompt_tokens`
    bare_key = "key" in name and not _KEY_NAME.search(name) and not any(s in name for s in ("secret", "token", "cred"))
    assigned = _ASSIGNED.match(text, end)
    if assigned is not None and not bare_key:
        span = _value_span(assigned, name)
        if span is not None:
            yield Finding(*span, "PASSWORD" if _PASSWORD_NAME.search(name) else "TOKEN")
    window = min(len(text), end + _NEAR_CHARS + 64)
    near = _NEAR.search(text, end, window)
    if near is not None and near.start() <= end + _NEAR_CHARS and "\n\n" not in text[end : near.start()]:
        whole = _NEAR.match(text, near.start())
        found = whole or near
        if entropy(found[1]) >= _MIN_ENTROPY + 0.3 and not _CODE_PATH.search(found[1]):
            yield Finding(*found.span(1), "SECRET")
    if not bare_key:
        strong = _HEX.search(text, end, min(len(text), end + 24 + 130))
        if strong is not None and strong.start() <= end + 24:
            yield Finding(*strong.span(1), "SECRET")


def _value_span(match: re.Match[str], name: str) -> tuple[int, int] | None:
    """Where the secret value of an assignment is; None when it is no secret."""
    quote, value = match[1], match[2].rstrip("\\")
    if quote is None:
        value = value.rstrip(".:*")
    start = match.start(2)
    end = start + len(value)
    if len(value) < 4 or placeholder(value):
        return None
    if _PASSWORD_NAME.search(name):
        return (start, end) if _like_password(value, quote is not None) else None
    if _NOT_SECRET_NAME.search(name) or len(value) < 12 or " " in value:
        return None
    mixed = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    random = mixed and entropy(value) >= _MIN_ENTROPY and not _CODE_PATH.search(value)
    return (start, end) if random else None


def _like_password(value: str, quoted: bool) -> bool:
    """Anything in quotes but a sentence or a name of code; without quotes it needs a digit or a sign."""
    if _CODE_CALL.search(value):
        return False
    if quoted:
        return value.count(" ") <= 3
    return any(not c.isalpha() and c not in "_.-/" for c in value)


def _is_basic(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def _matches(pattern: re.Pattern[str], text: str, entity: str) -> Iterator[Finding]:
    group = 1 if pattern.groups else 0
    for match in pattern.finditer(text):
        yield Finding(*match.span(group), entity)
