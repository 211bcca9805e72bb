"""What people say when an answer was wrong, was right, or when they want a person: patterns by language.

Precision comes first: a pattern must be about the answer, not about the topic ("what is wrong with my
order?" corrects nobody). English, German, French, Spanish, Portuguese, Italian, Dutch, Chinese, Japanese.
"""

from __future__ import annotations

import re


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.IGNORECASE)


CORRECTS_STRONGLY = _any(
    # English
    r"\b(that|this|it|your (answer|code|reply|response|result|fix|solution)|you)('s| is|'re| are|s) (just |still |simply |completely |totally |also )?(wrong|incorrect|not (right|correct|true|what i (asked|wanted|meant|said|need)))\b",
    r"\bnot what i (asked|wanted|meant|said|need|was asking)\b",
    r"\byou('ve| have)? (misunderstood|misread|got (that|it|this) wrong|made a mistake|forgot|missed|ignored|didn'?t (answer|listen|read|do|include|follow)|skipped)\b",
    r"\b(i (said|meant|asked for|asked you|told you)|as i said)\b",
    r"\b(i )?didn'?t (ask|say|want|mean)\b",
    r"(?<!if it )(?<!if that )(?<!if this )\bstill (not (work|right|correct|what)|isn'?t (work|right|correct|what)|doesn'?t (work|compile|run|pass)|does not (work|compile|run|pass)|fails?\b|failing|broken|wrong|(get|see|getting|seeing|have|having) the same (error|problem|issue|result))",
    r"\b(that|this|it) (didn'?t|doesn'?t|does not|did not) (work|help|compile|run|fix|solve|answer)\b",
    r"^(wrong|incorrect|false)[.!]*$",
    r"\bplease (fix|correct|redo) (that|this|it|your)\b",
    r"\bwhy (did|didn'?t|have|would) you\b",
    # German
    r"\bdas (ist|war) (falsch|nicht (richtig|korrekt|das,? was))\b",
    r"\b(das )?stimmt (so )?nicht\b",
    r"\bich (meinte|hatte .{0,30}gesagt|habe .{0,30}gesagt|wollte (aber|doch|eigentlich))\b",
    r"\bdu hast .{0,40}(vergessen|übersehen|missverstanden|falsch)\b",
    r"\b(funktioniert|geht|klappt) (immer noch |so |leider )?nicht\b",
    r"^nein[,.!:]? (das|ich|nicht|es|die|der|du|sie)\b",
    # French
    r"\bc'?est (faux|incorrect|pas (ça|cela|bon|correct|ce que))\b",
    r"\bce n'?est pas (ça|cela|bon|correct|exact|ce que)\b",
    r"\bje (voulais dire|parlais de|t'?ai dit|vous ai dit|n'?ai pas demandé)\b",
    r"\b(tu|vous) (as|avez) (oublié|mal compris)\b",
    r"\b(ça|cela) ne (marche|fonctionne) (toujours )?pas\b",
    r"^non[,.!:]? (ce|c'|je|pas|il|la|le|tu|vous)",
    # Spanish
    r"\b(eso|esto) (no es|está mal|es incorrecto|es falso)\b",
    r"\bno (es|era) (eso|correcto|lo que)\b",
    r"\b(quise decir|me refería|te dije|no te pedí|no pedí)\b",
    r"\b(olvidaste|te olvidaste|entendiste mal|has olvidado)\b",
    r"\b(no funciona|sigue sin funcionar|sigue fallando)\b",
    # Portuguese
    r"\b(isso|isto) (não é|está errado|está incorreto)\b",
    r"\b(eu quis dizer|não foi isso|não pedi|você esqueceu|não funciona|não funcionou)\b",
    # Italian
    r"\b(è sbagliato|non è (corretto|giusto|quello che)|intendevo|volevo dire|hai dimenticato|non funziona)\b",
    # Dutch
    r"\b(dat klopt niet|dat is (fout|niet (juist|correct|wat ik))|ik bedoelde|je bent .{0,20}vergeten|werkt (nog steeds )?niet)\b",
    # Chinese, Japanese
    r"不对|错了|搞错|不是这个|不是我(要|想|问)|我的意思是|我说的是|你(忘|漏|理解错)|还是不行|没有用|不正确",
    r"違います|違う(よ|。|$)|間違(って|い|え)|そうじゃな|そうではな|という意味では|忘れて(い)?ます|動きません|うまくいきません",
)
"""About the answer, and against it."""

CORRECTS_WEAKLY = _any(
    r"^(no|nope|nah)[,.!:;]? (that|it|this|i|not|you|the|my|use|should|we|there)\b",
    r"^(no|nope|wrong)[,.!]",
    r"^actually,? .{0,100}\bnot\b",
    r"\b(should|must) (be|have been)\b.{0,60}\bnot\b",
    r"\bthat'?s not (it|quite|the (one|right|correct))\b",
    r"^hmm+,? (no|not|that'?s not)\b",
    r"^nein[,.!]? ",
    r"^eigentlich (ist|war|meinte)\b",
    r"^non[,.!]? ",
    r"^no[,.!]? (es|el|la|lo|mi|quiero)\b",
    r"^não[,.!]? ",
    r"^不[,，。是]",
    r"^いいえ",
)
"""A correction where the answer stated something; where it asked something, just an answer."""

ASKS = _any(
    r"[?？]\W*$",
    r"\b(would you like|do you want|shall i|should i|please (confirm|provide|reply|let me know|share|choose|tell me)|could you (please )?(confirm|provide|share|tell|clarify))\b",
    r"\b(let me know (how|if|which|what|whether))\b",
    r"\b(möchten sie|möchtest du|soll ich|bitte (bestätigen|geben|nennen))\b",
    r"\b(souhaitez-vous|voulez-vous|veux-tu|veuillez|merci de)\b",
    r"\b(desea|quieres|quiere|podría|por favor,? (confirme|indique))\b",
    r"(请(确认|提供|告诉)|要不要|是否)",
)
"""The answer wants something of the user: what follows is a reply to that first."""

AGREES = _any(
    r"^(yes|yeah|yep|yup|sure|ok(ay)?|right|correct|please (proceed|go ahead|do|continue|confirm)|go ahead|sounds good|ja|oui|sí|si|sim|sì|好|是|はい)\b",
)

CHANGES_MIND = _any(
    r"\b(changed my mind|on second thought|i'?d (rather|like|prefer)|i want to|habe es mir anders überlegt)\b"
)
"""Another wish is no correction."""

NOT_A_CORRECTION = _any(
    r"\b(no|nope) (problem|worries|thanks|thank you|need|rush|questions?|further|more|other|idea)\b",
    r"^(no|nope|nah)[,.!]* ?(that'?s|that is|that would be|this is|it'?s|i'?m|i am|i do ?n[o']t|nothing|thanks|thank|you('ve| have)|we'?re)\b.{0,40}\b(all|it|fine|good|everything|set|ok(ay)?|great|help|perfect|have any|need|else|more)\b",
    r"^nein[,.!]* ?(danke|das (ist|war|wär'?s?) (alles|schon)|alles (gut|klar)|kein)",
    r"^non[,.!]* ?(merci|c'?est (tout|bon|parfait))",
    r"^no[,.!]* ?(gracias|eso es todo|nada más)",
    r"\bi (said|told you) (yes|ok|thanks)\b",
)
"""Refusals of an offer and closings, which begin as corrections do."""

CLOSES = _any(
    r"\bthat'?s (all|everything|it)( i need(ed)?| for (now|today))?\b|\bthat (is|was|will be|would be) (all|everything)\b",
    r"\b(it|that|this|everything) (works|worked|is working|solved it|fixed it|did it|helped)( now| perfectly| great| fine)?\b",
    r"\bexactly what i (needed|wanted|was looking for)\b",
    r"\b(have a (nice|great|good)|good ?bye|bye)\b",
    r"\b(das (war|ist|wär'?s?) alles|hat geklappt|funktioniert jetzt|genau das)\b",
    r"\b(c'?est tout|ça marche|exactement ce)\b",
    r"\b(eso es todo|ya funciona|justo lo que)\b",
    r"\b(è tutto|funziona adesso|é tudo|funcionou)\b",
    r"可以了|没有(其他)?问题了|うまくいきました|解決しました",
)
"""The matter is settled."""

THANKS = _any(
    r"\b(thank you|thanks|thankyou|thx|ty|cheers)\b",
    r"\b(perfect|excellent|awesome|brilliant|wonderful|fantastic|amazing)\b",
    r"\b(it|that|this|everything) (works|worked|is working|solved it|fixed it|did it|helped)( now| perfectly| great| fine)?\b",
    r"\bgreat (job|work|answer|help|,? that)\b",
    r"\bexactly what i (needed|wanted|was looking for)\b",
    r"\b(vielen dank|danke|super|perfekt|klasse|prima|hat geklappt|funktioniert jetzt)\b",
    r"\b(merci|parfait|génial|super|ça marche)\b",
    r"\b(gracias|perfecto|genial|funciona ya|ya funciona)\b",
    r"\b(obrigad[oa]|perfeito|valeu)\b",
    r"\b(grazie|perfetto|ottimo)\b",
    r"\b(dank je|dank u|bedankt|perfect)\b",
    r"谢谢|感谢|多谢|太好了|完美|可以了",
    r"ありがとう|助かりました|完璧|うまくいきました",
)

NOT_THANKS = _any(
    r"\bthanks? (you )?(in advance|for nothing|but|anyway|anyways)\b",
    r"\bthank you,? but\b",
    r"\b(thanks|thank you|danke|merci|gracias)[,.!]? (but|aber|mais|pero)\b",
    r"\bno,? (thanks|thank you|gracias|merci)\b",
    r"\b(im voraus|d'avance|por adelantado|de antemano)\b",
    r"\b(not|isn'?t|nowhere near|far from|less than) (perfect|great|excellent|awesome)\b",
    r"\bwould be (great|perfect|awesome|wonderful|fantastic|amazing)\b",
    r"\b(if|once|when|as long as) (it|that|this) works\b",
    r"\b(how|why|whether|what|explain|does|do|is|are|see)\b.{0,40}\b(it|that|this) works\b",
    r"\b(disappoint|frustrat|unacceptable|ridiculous|nothing (else |more )?you can do)",
)

WANTS_A_PERSON = _any(
    r"\b(speak|talk|chat|connect|transfer|escalate)\b.{0,40}\b(human|person|agent|representative|rep|supervisor|manager|operator|someone real)\b",
    r"^(human|agent|representative|operator)[.! ]*(please)?[.!]*$",
    r"\b(give|get) me (an? )?(real |live |actual )?(human|person|agent|representative|supervisor|manager)\b",
    r"\b(mit (einem|einer) (menschen|mitarbeiter(in)?|kollegen)|echten menschen)\b",
    r"\bparler à (un|une) (humain|personne|conseiller|conseillère|agent)\b",
    r"\bhablar con (una persona|un humano|un agente|un representante)\b",
    r"转人工|人工客服|真人",
    r"(人間|オペレーター|担当者)(と|に|へ)",
)

WANTS_NO_PERSON = _any(
    r"\b(don'?t|do not|not|no|without|rather than|before|instead of)\b.{0,40}\b(transfer|speak|talk|connect|escalat)",
    r"\bif\b.{0,80}\b(transfer|speak|talk|connect|escalat)",
    r"\b(spoke|talked|spoken|was transferred|were transferred)\b",
)
"""Refused, conditional or past."""
