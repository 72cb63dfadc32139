"""The golden file of IFEval: `ifeval.py DATA`, where DATA is the set's JSON Lines, in an environment with lm-eval.

For each prompt of the set, responses that are built to follow about half of its instructions, near their limits, go
through the task's own strict and loose tests. nltk's punkt_tab must be where nltk looks for it (NLTK_DATA). Prompts
that count a sign (`#`, `!`) are left out: there the task counts a letter that it draws at random.
"""

import random
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import langdetect
from lm_eval.tasks.ifeval import utils

from golden import read_rows, write_golden

NUM_RESPONSES = 3
SENTENCES = [
    "The old harbour wakes before the sun.",
    "Mr. Smith paid $3.50 for it, i.e. far too much!",
    "Is that so?",
    "It grew by 4.2 percent in the U.S. last year.",
    "Dr. J. K. Low, who lives at 5 Main St. in Boston, agrees.",
    'She said "Stop!" and left.',
    "Wait... what did NASA say about it?",
    "We met at 5 p.m. yesterday.",
    "The firm, Acme Inc., was sold to Bolt Co. in Jan. 1999.",
    "see e.g. the first chapter, vol. 2.",
    "No. 7 is alive",
    "DON'T PANIC, the EU and the UN are here!!",
    "He has a Ph.D. in maths (from M.I.T.).",
    "A-B tests, x-rays and T-shirts cost £20 etc.",
    "1. Open the box.\n2. Read it.",
    "Visit example.com/a.b for more.",
    "It rained; the river, the lake and the pond rose.",
    "The cat sat. the dog did not.",
    "\u201cQuoted,\u201d he wrote. \u2018Really?\u2019",
    "Well?! Yes... No.",
]
PLAIN = ["the sea is calm and the sky is wide", "a small dog runs over the green hill", "we walk home in the rain"]
LANGUAGES = {
    "de": "Das ist ein kleines Haus im Wald, und der Hund schläft vor der Tür.",
    "fr": "Le petit chat dort sur la chaise et la pluie tombe doucement.",
    "es": "El perro corre por el campo y los niños juegan en la calle.",
    "it": "Il gatto dorme sulla sedia e i bambini giocano nel giardino.",
    "pt": "O cachorro corre pelo campo e as crianças brincam na rua.",
    "ru": "Маленькая собака бежит по зелёному полю, и дети играют.",
    "hi": "छोटा कुत्ता हरे मैदान में दौड़ता है और बच्चे खेलते हैं।",
    "ar": "الكلب الصغير يركض في الحقل الأخضر والأطفال يلعبون.",
    "ko": "작은 개가 푸른 들판을 달리고 아이들이 놀고 있습니다.",
    "fi": "Pieni koira juoksee vihreällä pellolla ja lapset leikkivät.",
    "th": "สุนัขตัวเล็กวิ่งในทุ่งหญ้าและเด็กๆ กำลังเล่น",
    "vi": "Con chó nhỏ chạy trên cánh đồng xanh và trẻ em đang chơi.",
    "fa": "سگ کوچک در دشت سبز می‌دود و بچه‌ها بازی می‌کنند.",
    "bg": "Малкото куче тича по зеленото поле и децата играят.",
    "ne": "सानो कुकुर हरियो मैदानमा दौडन्छ र बच्चाहरू खेल्छन्।",
    "sw": "Mbwa mdogo anakimbia shambani na watoto wanacheza.",
    "kn": "ಸಣ್ಣ ನಾಯಿ ಹಸಿರು ಹೊಲದಲ್ಲಿ ಓಡುತ್ತದೆ.",
    "gu": "નાનો કૂતરો લીલા ખેતરમાં દોડે છે.",
    "pa": "ਛੋਟਾ ਕੁੱਤਾ ਹਰੇ ਖੇਤ ਵਿੱਚ ਦੌੜਦਾ ਹੈ।",
    "mr": "लहान कुत्रा हिरव्या शेतात धावतो आणि मुले खेळतात.",
    "te": "చిన్న కుక్క పచ్చని పొలంలో పరుగెత్తుతుంది.",
    "ta": "சிறிய நாய் பச்சை வயலில் ஓடுகிறது.",
    "bn": "ছোট কুকুর সবুজ মাঠে দৌড়ায় এবং শিশুরা খেলে।",
    "ur": "چھوٹا کتا سبز میدان میں دوڑتا ہے اور بچے کھیلتے ہیں۔",
    "en": "The small dog runs over the green field and the children play.",
}


class Response:
    """A text that is bent, instruction by instruction, towards following or breaking them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.text = self._start()

    def _start(self) -> str:
        sentences = self.draw.choices(SENTENCES, k=self.draw.randint(1, 8))
        return self.draw.choice([" ", " ", "\n", "\n\n"]).join(sentences)

    def bend(self, name: str, arguments: dict[str, Any]) -> None:
        kind = name.partition(":")[2]
        bend = getattr(self, f"_{kind}", None)
        if bend is not None:
            bend(arguments)

    def _near(self, number: int) -> int:
        return max(0, number + self.draw.choice([-1, -1, 0, 0, 1, 2]))

    def _add(self, piece: str) -> None:
        glue = self.draw.choice([" ", "\n", "\n\n"])
        self.text = self.text + glue + piece if self.draw.random() < 0.7 else piece + glue + self.text

    def _existence(self, arguments: dict[str, Any]) -> None:
        words = [word for word in arguments["keywords"] if self.draw.random() < 0.8]
        self._add(" ".join(self.draw.choice([str.lower, str.upper, str.title])(word) for word in words))

    def _frequency(self, arguments: dict[str, Any]) -> None:
        words = [arguments["keyword"]] * self._near(arguments["frequency"])
        self._add(" ".join(self.draw.choice([word, word.upper(), f"x{word}y", word + "."]) for word in words))

    def _forbidden_words(self, arguments: dict[str, Any]) -> None:
        word = self.draw.choice(arguments["forbidden_words"])
        self._add(self.draw.choice(["", f"{word}s", f"({word.upper()})", f"un{word}", f"{word}-like"]))

    def _letter_frequency(self, arguments: dict[str, Any]) -> None:
        letter = arguments["letter"]
        count = self.text.lower().count(letter.lower())
        self._add(letter.upper() * max(0, self._near(arguments["let_frequency"]) - count))

    def _response_language(self, arguments: dict[str, Any]) -> None:
        code = arguments["language"] if self.draw.random() < 0.6 else self.draw.choice(sorted(LANGUAGES))
        self.text = " ".join([LANGUAGES.get(code, "12345 !?")] * self.draw.randint(1, 4))

    def _number_sentences(self, arguments: dict[str, Any]) -> None:
        wanted = max(1, round(self._near(arguments["num_sentences"]) * self.draw.choice([0.5, 0.7, 0.9, 1, 1])))
        self.text = self.draw.choice([" ", " ", "\n", "  "]).join(self.draw.choices(SENTENCES, k=wanted))

    def _number_words(self, arguments: dict[str, Any]) -> None:
        missing = self._near(arguments["num_words"]) - len(self.text.split())
        words = (self.draw.choice(PLAIN) + ". ").split() * (max(0, missing) // 8 + 1)
        self._add(" ".join(words[: max(0, missing)]))

    def _number_paragraphs(self, arguments: dict[str, Any]) -> None:
        glue = self.draw.choice(["\n***\n", "***", " *** ", "\n\n***\n\n", "\n* * *\n"])
        paragraphs = [self._start() for _ in range(self._near(arguments["num_paragraphs"]))]
        self.text = (
            self.draw.choice(["", "", glue]) + glue.join(paragraphs) + self.draw.choice(["", "", glue, glue + glue])
        )

    def _nth_paragraph_first_word(self, arguments: dict[str, Any]) -> None:
        count = self._near(arguments["num_paragraphs"])
        paragraphs = [self.draw.choice(PLAIN) for _ in range(count)]
        word = arguments["first_word"]
        if arguments["nth_paragraph"] <= count:
            said = self.draw.choice(
                [word, word.upper(), f'"{word}"', f"'{word},", f"{word}.", f"The {word}", f"*{word}*"]
            )
            paragraphs[arguments["nth_paragraph"] - 1] = f"{said} {PLAIN[0]}"
        self.text = self.draw.choice(["\n\n", "\n\n", "\n\n\n", "\n", "\n\n\n\n"]).join(paragraphs)

    def _number_placeholders(self, arguments: dict[str, Any]) -> None:
        forms = ["[name]", "[address]", "[]", "[a [b] c]", "[x\ny]", "(date)", "[1]"]
        self._add(" ".join(self.draw.choices(forms, k=self._near(arguments["num_placeholders"]))))

    def _postscript(self, arguments: dict[str, Any]) -> None:
        forms = [
            arguments["postscript_marker"],
            "P.S.",
            "p. s. more",
            "P.P.S",
            "P. P. S.",
            "PS",
            "P.S",
            "p.p.s.",
            "P.S:",
        ]
        self._add(self.draw.choice(forms) + " And more.")

    def _number_bullet_lists(self, arguments: dict[str, Any]) -> None:
        forms = [
            "* one",
            "- two",
            "  * three",
            "*four",
            "** five **",
            "\u2022 six",
            "-seven",
            "*",
            "*** eight",
            "\t- nine",
        ]
        weights = [4, 4, 2, 1, 1, 1, 1, 1, 1, 1]
        self._add("\n".join(self.draw.choices(forms, weights, k=self._near(arguments["num_bullets"]))))

    def _constrained_response(self, _: dict[str, Any]) -> None:
        forms = [
            "My answer is yes.",
            "My answer is no.",
            "My answer is maybe.",
            "my answer is yes.",
            "My answer is yes",
        ]
        self.text = self.draw.choice([*forms, f"Well: {forms[0]} Really.", " ".join(forms)])

    def _number_highlighted_sections(self, arguments: dict[str, Any]) -> None:
        forms = ["*one*", "**two**", "* *", "****", "*three\nfour*", "***five***", "*six", "** **"]
        weights = [4, 4, 1, 1, 1, 1, 1, 1]
        self._add(" and ".join(self.draw.choices(forms, weights, k=self._near(arguments["num_highlights"]))))

    def _multiple_sections(self, arguments: dict[str, Any]) -> None:
        name = arguments["section_spliter"]
        forms = [
            f"{name} {{}}",
            f"{name}{{}}",
            f"{name.upper()} {{}}",
            f"{name} {{}}:",
            f"**{name} {{}}**",
            f"{name} one",
        ]
        weights = [6, 1, 1, 3, 2, 1]
        heads = self.draw.choices(forms, weights, k=self._near(arguments["num_sections"]))
        self.text = "\n".join(f"{head.format(n + 1)}\n{self.draw.choice(PLAIN)}" for n, head in enumerate(heads))

    def _json_format(self, _: dict[str, Any]) -> None:
        bodies = ['{"a": [1, 2.5, null]}', "[]", '"text"', "12", "{'a': 1}", '{"a": 1,}', '{"a": NaN}', '{"a": 1} more']
        wrappers = [
            "{}",
            "```json\n{}\n```",
            "```JSON\n{}```",
            "```\n{}\n```",
            "``` json\n{}\n```",
            "Here:\n{}",
            "``{}``",
        ]
        self.text = self.draw.choice(wrappers).replace("{}", self.draw.choice(bodies))

    def _title(self, _: dict[str, Any]) -> None:
        forms = [
            "<<A day>>",
            "<< >>",
            "<<>>",
            "<<<A>>>",
            "<A day>",
            "<<A\nday>>",
            "a << b >> c",
            "<<A>",
            "<<A>> <<>>",
            ">><<",
        ]
        self._add(self.draw.choice(forms))

    def _two_responses(self, _: dict[str, Any]) -> None:
        parts = [self.draw.choice(PLAIN[:2]) for _ in range(self.draw.choice([1, 2, 2, 2, 3]))]
        glue = self.draw.choice(["******", "\n******\n", "******\n******", "*****", "*******"])
        self.text = self.draw.choice(["", "", glue]) + glue.join(parts) + self.draw.choice(["", "", "\n" + glue])

    def _repeat_prompt(self, arguments: dict[str, Any]) -> None:
        said = arguments["prompt_to_repeat"]
        said = self.draw.choice(
            [said, said.upper(), f" {said}\n", said[:-1], f"Sure!\n{said}", f'"{said}"', f"**{said}**"]
        )
        self.text = f"{said}\n\n{self.text}"

    def _end_checker(self, arguments: dict[str, Any]) -> None:
        said = arguments["end_phrase"]
        said = self.draw.choice([said, said.upper(), f'"{said}"', said + ".", f"{said}\n", said[1:], f"**{said}**"])
        self.text = f"{self.text} {said}"

    def _quotation(self, _: dict[str, Any]) -> None:
        wrappers = ['"{}"', '"{}"', ' "{}"\n', "'{}'", '"{}', "\u201c{}\u201d", '**"{}"**', 'Sure:\n"{}"']
        self.text = self.draw.choice(wrappers).replace("{}", self.text)

    def _capital_word_frequency(self, arguments: dict[str, Any]) -> None:
        forms = [
            "NASA",
            "A-B",
            "DON'T",
            "U.S.",
            "I",
            "X1",
            "EU's",
            "OK!",
            "(UN)",
            "A.B",
            "WE'LL",
            "CAN'T",
            "Abc",
            "R&D",
        ]
        wanted = self._near(arguments["capital_frequency"])
        self.text = self.draw.choice([" ", ", ", ". "]).join(self.draw.choices(forms, k=wanted)) + " " + PLAIN[0]

    def _english_capital(self, _: dict[str, Any]) -> None:
        self.text = self.draw.choice([self.text.upper(), self.text.upper(), self.text, LANGUAGES["de"].upper(), "12 !"])

    def _english_lowercase(self, _: dict[str, Any]) -> None:
        self.text = self.draw.choice([self.text.lower(), self.text.lower(), self.text, LANGUAGES["fr"].lower(), "12 !"])

    def _no_comma(self, _: dict[str, Any]) -> None:
        if self.draw.random() < 0.7:
            self.text = self.text.replace(",", self.draw.choice(["", ";", "\uff0c", "\u060c"]))

    def finished(self) -> str:
        frame = self.draw.choice(
            ["{}", "{}", "{}", "{}", "Sure, here it is:\n{}", "{}\nI hope, this helps.", "*{}*", " \n{}\n"]
        )
        return self.draw.choice([frame.replace("{}", self.text)] * 30 + ["", " \n"])


def counts_a_sign(row: dict[str, Any]) -> bool:
    return any(each.get("letter") and not each["letter"].isalpha() for each in row["kwargs"])


def main() -> None:
    langdetect.DetectorFactory.seed = 0
    rows = [row for row in read_rows(Path(sys.argv[1])) if not counts_a_sign(row)]
    checked = []
    for number, row in enumerate(rows):
        row_id = str(row.get("id", row.get("key")))
        kwargs = [{key: value for key, value in each.items() if value is not None} for each in row["kwargs"]]
        pairs = list(zip(row["instruction_id_list"], kwargs, strict=True))
        for attempt in range(NUM_RESPONSES):
            draw = random.Random(f"{number}/{attempt}")
            response = Response(draw)
            for name, arguments in draw.sample(pairs, len(pairs)):
                if draw.random() < 0.85:
                    response.bend(name, arguments)
            text = response.finished()
            document = utils.InputExample(number, row["instruction_id_list"], row["prompt"], kwargs)
            strict = utils.test_instruction_following_strict(document, text)
            loose = utils.test_instruction_following_loose(document, text)
            verdicts = [list(map(int, each.follow_instruction_list)) for each in (strict, loose)]
            checked.append([row_id, *verdicts, text])
    tasks = {str(row.get("id", row.get("key"))): [row["instruction_id_list"], row["kwargs"]] for row in rows}
    accuracies = {
        "prompt_strict": sum(all(strict) for _, strict, _, _ in checked) / len(checked),
        "prompt_loose": sum(all(loose) for _, _, loose, _ in checked) / len(checked),
        "instruction_strict": utils.agg_inst_level_acc([strict for _, strict, _, _ in checked]),
        "instruction_loose": utils.agg_inst_level_acc([loose for _, _, loose, _ in checked]),
    }
    official = {"package": "lm-eval", "version": version("lm-eval"), "nltk": version("nltk")}
    official["langdetect"] = version("langdetect")
    write_golden("ifeval", official, {"tasks": tasks, "responses": checked, "accuracies": accuracies})


if __name__ == "__main__":
    main()
