"""Language by the beginning of a text: right on plain sentences, the same however it is called."""

import numpy as np
import pytest

from shoal.data.language import MAX_CHARACTERS, language

SENTENCES = {
    "en": "All human beings are born free and equal in dignity and rights.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos.",
    "ru": "Человеческие люди рождаются свободными и равными в своем достоинстве и правах.",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "zh": "人人生而自由、在尊严和权利上一律平等。他们赋有理性和良心、并应以兄弟关系的精神相对待。",
}


@pytest.mark.parametrize("code", SENTENCES)
def test_a_plain_sentence_is_known(code: str):
    found, score = language(SENTENCES[code])
    assert found == code
    assert 0.5 < score <= 1
    assert score == round(score, 2)


@pytest.mark.parametrize("text", ["", "x = 1", "1234567890 " * 50, "   \n" * 100, "Too short."])
def test_too_little_text_is_undetermined(text: str):
    assert language(text) == ("und", 0.0)


def test_only_the_beginning_counts():
    start = SENTENCES["de"] * 50
    assert len(start) > MAX_CHARACTERS
    assert language(start) == language(start + SENTENCES["ja"] * 1_000)


def test_scores_do_not_depend_on_what_was_asked_before():
    first = {code: language(text) for code, text in SENTENCES.items()}
    again = {code: language(text) for code, text in reversed(SENTENCES.items())}
    assert first == again


def test_scores_are_those_of_the_model_itself():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    model = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    for text in SENTENCES.values():
        code, score = model.classify(text)
        found, rounded = language(text)
        assert found == code
        assert np.isclose(rounded, score, atol=0.0051)
