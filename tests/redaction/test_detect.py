from __future__ import annotations

import time

import pytest

from registry.tenant_policy import Dictionary
from registry.tenants import RegistryError
from services.proxy.redaction import presidio
from services.proxy.redaction.detect import Detector
from services.proxy.redaction.numbers import iban_length, is_card, luhn


def found(text: str, detector: Detector | None = None) -> list[tuple[str, str]]:
    return [(f.entity, text[f.start : f.end]) for f in (detector or Detector()).find(text)]


@pytest.mark.stack
def test_presidios_patterns_are_those_of_the_installed_presidio() -> None:
    pytest.importorskip("presidio_analyzer", reason="needs presidio-analyzer (dev)")
    assert presidio.FILE.read_text() == presidio.render(), "run `python -m services.proxy.redaction.presidio`"


def test_a_row_of_digits_is_a_finding_only_with_a_checksum_or_a_word_for_it() -> None:
    assert found("see 4012888888881881") == [("CREDIT_CARD", "4012888888881881")]
    assert found("see 4012888888881882") == []
    assert found("see 078051120") == []
    assert found("social security number 078051120") == [("US_SSN", "078051120")]
    assert found("PESEL 44051401458") == [("PL_PESEL", "44051401458")]
    assert found("PESEL 44051401459") == []


def test_an_address_ends_where_it_ends() -> None:
    assert found("(anna@example.com), ok") == [("EMAIL_ADDRESS", "anna@example.com")]
    assert found("git@github.com:org/repo") == []
    assert found("npm i left-pad@1.3.0") == []


def test_a_password_is_a_secret_even_where_it_looks_like_an_address() -> None:
    assert found("postgres://bob:s3cr3t@db.example.org/x")[0][0] == "CONNECTION_STRING"


@pytest.mark.parametrize(
    "text",
    [
        "anna\u200b@exam\u00adple.com",
        "anna\\u0040example.com",
        "anna%40example.com",
        "YW5uYUBleGFtcGxlLmNvbQ==",
        "616e6e61406578616d706c652e636f6d",
        "ａｎｎａ＠ｅｘａｍｐｌｅ．ｃｏｍ",
        "WVc1dVlVQmxlR0Z0Y0d4bExtTnZiUT09",
    ],
)  # fmt: skip
def test_a_disguise_hides_nothing(text: str) -> None:
    assert found(text) == [("EMAIL_ADDRESS", text)]


def test_an_image_is_not_searched_and_what_surrounds_it_is() -> None:
    image = "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAAAAUA" * 40_000
    started = time.monotonic()
    assert [entity for entity, _ in found(f"anna@example.com {image} ada@example.com")] == ["EMAIL_ADDRESS"] * 2
    assert time.monotonic() - started < 1


@pytest.mark.parametrize(
    "text",
    ["%41" * 50_000, "a@" * 50_000, "key " * 20_000, "0" * 300_000, "-----BEGIN " * 9000, "12345a" * 20_000],
)
def test_no_text_takes_long(text: str) -> None:
    started = time.monotonic()
    Detector().find(text[:99_000])
    assert time.monotonic() - started < 3


def test_places_in_a_text_are_right_where_lower_case_is_longer() -> None:
    assert found("İİİİ password: hunter2-x") == [("PASSWORD", "hunter2-x")]


def test_a_dictionary_finds_whole_words_in_any_case() -> None:
    detector = Detector((Dictionary(name="project", terms=("Blue Heron",), patterns=(r"EMP-\d{5}",)),))
    assert found("the blue heron and EMP-12345", detector) == [("PROJECT", "blue heron"), ("PROJECT", "EMP-12345")]
    assert found("blue herons", detector) == []


@pytest.mark.parametrize("pattern", ["(a+)+$", "(", "x*", "a" * 400])
def test_a_pattern_that_is_broken_or_could_run_away_is_refused(pattern: str) -> None:
    with pytest.raises(RegistryError, match="dictionary d"):
        Dictionary(name="d", patterns=(pattern,)).compiled()


def test_only_the_countries_of_the_policy_are_looked_for() -> None:
    assert found("PESEL 44051401458", Detector(countries=frozenset({"us"}))) == []


def test_an_exchanges_own_identifiers_are_not_searched_and_what_only_begins_like_one_is() -> None:
    names = ("se_01a22ad8-43c5-7001-b8c7-86e7450070b1", "chatcmpl-000000000007", "call_a1B2c3d4E5")
    detector = Detector()
    assert [f for name in names for f in detector.find_in(name, "id")] == []
    assert found("call_ anna@example.com") == [("EMAIL_ADDRESS", "anna@example.com")]
    assert found("call_a1B2c3d4E5", Detector((Dictionary(name="d", patterns=("call_a1B2c3d4E5",)),))) != []


def test_digits_of_other_scripts_are_no_way_around() -> None:
    assert found("phone +4930١٢٣٤٥٦٧ ok 1")[0][0] == "PHONE_NUMBER"


def test_checksums() -> None:
    assert luhn("79927398713") and not luhn("79927398710")
    assert is_card("3782 822463 10005") and not is_card("4000 0000 0000 0000 0")
    assert iban_length("DE89 3704 0044 0532 0130 00 AND") == 27
    assert iban_length("DE89 3704 0044 0532 0130 01") == 0


@pytest.mark.parametrize(
    ("secret", "entity"),
    [
        ("sk-proj-Q001AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfGh", "API_KEY"),
        ("ghp_Q001AbCdEfGhIjKlMnOpQrStUvWx012345", "API_KEY"),
        ("AKIAIOSFODNN7EXAMPLE", "API_KEY"),
        ("4012888888881881", "CREDIT_CARD"),
        ("+49 30 901820", "PHONE_NUMBER"),
        ("44051401458", "PL_PESEL"),
    ],
)
def test_a_name_joined_to_a_secret_does_not_hide_it(secret: str, entity: str) -> None:
    word = "PESEL: " if entity == "PL_PESEL" else ""
    for text in (f"{word}user_{secret}", f"{word}id_{secret}_account__session_7"):
        ((what, where),) = found(text)
        assert (what, where.startswith(secret)) == (entity, True), text


def test_ids_of_providers_and_of_ours_are_no_numbers() -> None:
    for text in (
        "ev_45395787-6362-7486-8539-578763621486",
        "ev_45395787636214864539578763621486",
        "call_4012888888881881abcdef",
        "resp_0193a7c2d4e5f60718293a4b5c6d7e8f",
        "toolu_01A09q90qw90lq917835lq9",
        "order_4012888888881882",
        "trace_key_0193a7c2-d4e5-7f60-8182-93a4b5c6d7e8",
    ):
        assert found(text) == []
