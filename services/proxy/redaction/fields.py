"""Fields that are hidden because of their name, whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from registry.tenant_policy import Action, FieldRule, TenantPolicy

_SECRET = {
    "PASSWORD": ("password", "passwd", "pwd", "passphrase", "passcode", "userpassword", "dbpassword", "newpassword",
                 "oldpassword", "currentpassword"),
    "TOKEN": ("authorization", "proxyauthorization", "apikey", "xapikey", "xgoogapikey", "accesstoken",
              "refreshtoken",
              "idtoken", "authtoken", "sessiontoken", "bearertoken", "xauthtoken", "clientsecret",
              "secretkey",
              "secretaccesskey", "awssecretaccesskey", "privatekey", "signingkey", "cookie", "setcookie", "xcsrftoken",
              "connectionstring", "xevoplanekey"),
    "CVV": ("cvv", "cvv2", "cvc", "cvc2", "securitycode", "cardverificationvalue"),
    "PIN": ("pin", "pincode", "otp", "onetimepassword"),
}  # fmt: skip
_NUMBERS = {
    "US_SSN": ("ssn", "socialsecuritynumber", "socialsecurity"),
    "CREDIT_CARD": ("creditcardnumber", "cardnumber", "creditcard", "ccnumber"),
    "IBAN_CODE": ("iban",),
    "ACCOUNT": ("bankaccount", "bankaccountnumber"),
    "ID_NUMBER": ("passportnumber", "passportno", "taxid", "nationalid", "driverslicense", "driverlicensenumber"),
    "DATE_OF_BIRTH": ("dateofbirth", "dob", "birthdate", "birthday"),
}
_PERSON = {
    "PERSON": ("firstname", "lastname", "fullname", "middlename", "surname", "givenname", "familyname", "customername",
               "displayname", "cardholder", "cardholdername"),
    "EMAIL_ADDRESS": ("email", "emailaddress"),
    "PHONE_NUMBER": ("phone", "phonenumber", "mobile", "mobilenumber", "telephone"),
    "ADDRESS": ("address", "address1", "address2", "street", "streetaddress", "zip", "zipcode", "postalcode",
                "postcode"),
}  # fmt: skip
"""Hidden by the `strict` level only: names and addresses need a person to read them to be useful at all."""

ENTITIES = frozenset({*_SECRET, *_NUMBERS, *_PERSON})
"""What fields with these names hold."""

_LONGEST = 200
"""Characters of a name that is remembered."""
_SEPARATORS = re.compile(r"[\W_]+")


def normal(name: str) -> str:
    """`Customer-Phone_Number` → `customerphonenumber`: how names are compared."""
    return _SEPARATORS.sub("", name).lower()


class FieldRules:
    """Which field is hidden how."""

    def __init__(self, policy: TenantPolicy) -> None:
        self.names: dict[str, FieldRule] = {}
        self.paths: list[tuple[tuple[str, ...], FieldRule]] = []
        levels: list[tuple[dict[str, tuple[str, ...]], Action]] = []
        if policy.redaction != "off":
            levels.append((_SECRET, "mask"))
        if policy.redaction in ("standard", "strict"):
            levels.append((_NUMBERS, "pseudonym"))
        if policy.redaction == "strict":
            levels.append((_PERSON, "pseudonym"))
        for fields, action in levels:
            for entity, names in fields.items():
                for name in names:
                    self.names[name] = FieldRule(field=name, action=policy.actions.get(entity, action), entity=entity)
        for rule in policy.fields:
            segments = tuple("*" if s == "*" else normal(s) for s in rule.field.split("."))
            if len(segments) == 1:
                self.names[segments[0]] = rule
            else:
                self.paths.append((segments[::-1], rule))
        self._normal: dict[str, str] = {}

    def find(self, name: str, path: Sequence[str]) -> FieldRule | None:
        """The rule for the field `name` at `path` (its own name last); a path's rule goes before a name's."""
        if self.paths:
            for segments, rule in self.paths:
                if len(segments) <= len(path) and self._ends_with(path, segments):
                    return rule
        return self.names.get(self.normal(name))

    def any_of(self, names: Iterable[str]) -> bool:
        """Might one of these names have a rule?"""
        return bool(self.paths) or any(self.normal(name) in self.names for name in names)

    def normal(self, name: str) -> str:
        known = self._normal.get(name)
        if known is None:
            if len(self._normal) > 10_000:
                self._normal.clear()
            known = normal(name)
            if len(name) <= _LONGEST:
                self._normal[name] = known
        return known

    def _ends_with(self, path: Sequence[str], segments: tuple[str, ...]) -> bool:
        return all(s in ("*", self.normal(p)) for s, p in zip(segments, reversed(path), strict=False))
