"""IFEval's 25 checks, by the names that the data uses. Pure but for the language detector.

Each takes the response and the instruction's arguments. They are as lenient as the task's authors: keywords are
searched as patterns, a bullet may be a star or a dash, a title needs no separate line. All are linear in the response,
since a model may write a hundred thousand brackets.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from rstar2.errors import UserError
from rstar2.evals.ifeval.language import capital_words, count_sentences, count_words, is_in_language

Arguments = Mapping[str, Any]
Check = Callable[[str, Arguments], bool]

CONSTRAINED_RESPONSES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_PUNCTUATION = frozenset(".,?!'\"")
_FENCES = ("```json", "```Json", "```JSON", "```")


def follows(name: str, response: str, arguments: Arguments) -> bool:
    """Whether a response follows the instruction; an empty one follows none."""
    check = CHECKS.get(name)
    if check is None:
        raise UserError(f"IFEval's data ask for the check {name!r}, which is unknown; there are {', '.join(CHECKS)}")
    return bool(response.strip()) and check(response, arguments)


def _compare(count: int, relation: str, number: int) -> bool:
    match relation:
        case "less than":
            return count < number
        case "at least":
            return count >= number
    raise UserError(f"IFEval's data compare with {relation!r}; it must be 'less than' or 'at least'")


def _existence(response: str, arguments: Arguments) -> bool:
    return all(re.search(word, response, re.IGNORECASE) for word in arguments["keywords"])


def _frequency(response: str, arguments: Arguments) -> bool:
    found = re.findall(arguments["keyword"].strip(), response, re.IGNORECASE)
    return _compare(len(found), arguments["relation"], arguments["frequency"])


def _forbidden_words(response: str, arguments: Arguments) -> bool:
    return not any(re.search(rf"\b{word}\b", response, re.IGNORECASE) for word in arguments["forbidden_words"])


def _letter_frequency(response: str, arguments: Arguments) -> bool:
    count = response.lower().count(arguments["letter"].strip().lower())
    return _compare(count, arguments["let_relation"], arguments["let_frequency"])


def _response_language(response: str, arguments: Arguments) -> bool:
    return is_in_language(response, arguments["language"])


def _number_sentences(response: str, arguments: Arguments) -> bool:
    return _compare(count_sentences(response), arguments["relation"], arguments["num_sentences"])


def _number_words(response: str, arguments: Arguments) -> bool:
    return _compare(count_words(response), arguments["relation"], arguments["num_words"])


def _number_paragraphs(response: str, arguments: Arguments) -> bool:
    """Paragraphs between `***`; an empty one may be only at either end."""
    paragraphs = re.split(r"\s?\*\*\*\s?", response)
    if any(not paragraph.strip() for paragraph in paragraphs[1:-1]):
        return False
    return sum(bool(paragraph.strip()) for paragraph in paragraphs) == int(arguments["num_paragraphs"])


def _nth_paragraph_first_word(response: str, arguments: Arguments) -> bool:
    paragraphs = response.split("\n\n")
    num_filled = sum(bool(paragraph.strip()) for paragraph in paragraphs)
    nth = arguments["nth_paragraph"]
    if nth > num_filled or not (paragraph := paragraphs[nth - 1].strip()):
        return False
    first = paragraph.split()[0].lstrip("'").lstrip('"')
    end = next((index for index, letter in enumerate(first) if letter in _PUNCTUATION), len(first))
    is_right_word = first[:end].lower() == str(arguments["first_word"]).lower()
    return is_right_word and num_filled == int(arguments["num_paragraphs"])


def _number_placeholders(response: str, arguments: Arguments) -> bool:
    return sum(map(_num_brackets, response.split("\n"))) >= int(arguments["num_placeholders"])


def _num_brackets(line: str) -> int:
    """Pairs of square brackets, from the first that opens to the next that closes."""
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def _postscript(response: str, arguments: Arguments) -> bool:
    marker = arguments["postscript_marker"].strip()
    patterns = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(patterns.get(marker, marker.lower()), response.lower()) is not None


def _number_bullet_lists(response: str, arguments: Arguments) -> bool:
    stars = re.findall(r"^[^\S\n]*\*[^\*].*$", response, re.MULTILINE)
    dashes = re.findall(r"^[^\S\n]*-.*$", response, re.MULTILINE)
    return len(stars) + len(dashes) == int(arguments["num_bullets"])


def _constrained_response(response: str, _: Arguments) -> bool:
    return any(option in response for option in CONSTRAINED_RESPONSES)


def _number_highlighted_sections(response: str, arguments: Arguments) -> bool:
    single = [text for text in re.findall(r"\*[^\n\*]*\*", response) if text.strip("*").strip()]
    double = [text for text in re.findall(r"\*\*[^\n\*]*\*\*", response) if text[2:-2].strip()]
    return len(single) + len(double) >= int(arguments["num_highlights"])


def _multiple_sections(response: str, arguments: Arguments) -> bool:
    found = re.split(rf"\s?{arguments['section_spliter'].strip()}\s?\d+\s?", response)
    return len(found) - 1 >= int(arguments["num_sections"])


def _json_format(response: str, _: Arguments) -> bool:
    text = response.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def _title(response: str, _: Arguments) -> bool:
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


def _two_responses(response: str, _: Arguments) -> bool:
    parts = response.split("******")
    if any(not part.strip() for part in parts[1:-1]):
        return False
    filled = [part.strip() for part in parts if part.strip()]
    return len(filled) == 2 and filled[0] != filled[1]


def _repeat_prompt(response: str, arguments: Arguments) -> bool:
    return response.strip().lower().startswith(str(arguments["prompt_to_repeat"]).strip().lower())


def _end_checker(response: str, arguments: Arguments) -> bool:
    return response.strip().strip('"').lower().endswith(str(arguments["end_phrase"]).strip().lower())


def _quotation(response: str, _: Arguments) -> bool:
    text = response.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _capital_word_frequency(response: str, arguments: Arguments) -> bool:
    return _compare(capital_words(response), arguments["capital_relation"], arguments["capital_frequency"])


def _english_capital(response: str, _: Arguments) -> bool:
    return response.isupper() and is_in_language(response, "en")


def _english_lowercase(response: str, _: Arguments) -> bool:
    return response.islower() and is_in_language(response, "en")


def _no_comma(response: str, _: Arguments) -> bool:
    return "," not in response


CHECKS: dict[str, Check] = {
    "keywords:existence": _existence,
    "keywords:frequency": _frequency,
    "keywords:forbidden_words": _forbidden_words,
    "keywords:letter_frequency": _letter_frequency,
    "language:response_language": _response_language,
    "length_constraints:number_sentences": _number_sentences,
    "length_constraints:number_words": _number_words,
    "length_constraints:number_paragraphs": _number_paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_paragraph_first_word,
    "detectable_content:number_placeholders": _number_placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _number_bullet_lists,
    "detectable_format:constrained_response": _constrained_response,
    "detectable_format:number_highlighted_sections": _number_highlighted_sections,
    "detectable_format:multiple_sections": _multiple_sections,
    "detectable_format:json_format": _json_format,
    "detectable_format:title": _title,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": _repeat_prompt,
    "startend:end_checker": _end_checker,
    "startend:quotation": _quotation,
    "change_case:capital_word_frequency": _capital_word_frequency,
    "change_case:english_capital": _english_capital,
    "change_case:english_lowercase": _english_lowercase,
    "punctuation:no_comma": _no_comma,
}
