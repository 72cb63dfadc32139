"""The viewer in a real browser: every view, on a phone and on a wide screen, by keyboard, and under attack."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from chromium import EXECUTABLE, Page, browser_page
from web_attacks import ATTACKS, UNSEEN
from web_episodes import FAULT, LONG_TEXT, UNDECIDED, write_episodes_run
from web_runs import answering_turn, calling_turn, create, make_group, make_step_record, make_trace, write_small_run

from rstar2.agent import ChatFormat, PythonTool
from rstar2.engine.plain_text import PlainTextTokenizer
from rstar2.engine.scripted import ScriptedEngine, ScriptedPrompt
from rstar2.environments import Judgement
from rstar2.environments.plain_episode import PlainEnvironment, PlainEpisode
from rstar2.records import Problem, RunView, Selection, ToolCall, ToolResult, ToolStatus, Verdict
from rstar2.records.trace import GOLD_KEY, SCORE_PREFIX
from rstar2.sandbox import LocalConfig, LocalExecutor
from rstar2.sandbox.slots.slot_factory import SlotConfig
from rstar2.serve import ServedAgent, ServedModel, ServeSettings
from rstar2.serve.agent import AgentApi
from rstar2.serve.routing import answered
from rstar2.serve.service import ModelService
from rstar2.web import render_report
from rstar2.web.demo import unpack_demo
from rstar2.web.run_reader import open_runs
from rstar2.web.server import create_app, serving
from rstar2.web.step_reader import Query

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium on this machine: apt-get install chromium"),
]

PHONE, WIDE = (390, 844), (1440, 900)


class AskingEnvironment(PlainEnvironment):
    """Its user asks back, once."""

    async def begin(self, problem: Problem) -> Any:
        @dataclass(frozen=True)
        class Asking(PlainEpisode):
            async def reply(self, said: str) -> str | None:
                return f"Sure of {problem.problem}?" if "done" in said else None

        return Asking(self.judge, self.make_tools())


def policy(prompt: ScriptedPrompt) -> str:
    attack = ATTACKS["image error"]
    call = json.dumps({"name": PythonTool.schema.name, "arguments": {"code": f"print({attack!r})", "input": ""}})
    calling = f"I run it.</reason>\n<tool_call>\n{call}\n</tool_call>"
    answer = f"</reason><answer>\\boxed{{{attack}}}</answer>"
    return (calling, "</reason>It is done.", answer)[prompt.turn]


class ScriptedPlayground:
    """The real agent server, with the sandbox behind it."""

    models = ("scripted",)

    def __init__(self, executor: LocalExecutor) -> None:
        async def judge(*_: Any) -> Judgement:
            raise AssertionError("the playground judges nothing")

        chat = ChatFormat.of(PlainTextTokenizer())
        engine = ScriptedEngine(policy, chat.tokenizer, chat.end_of_turn_id)
        agent = ServedAgent(AskingEnvironment(judge, lambda: [PythonTool(executor)]))
        self._api = AgentApi(ModelService(ServedModel(engine, chat, "scripted"), ServeSettings()), agent)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await answered(self._api.handle, request)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    async with browser_page(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("runs")
    write_small_run(folder / "small")
    write_small_run(folder / "other")
    write_hostile_run(folder / "hostile")
    demo = unpack_demo(folder)
    readers = open_runs([folder / "small", folder / "other", folder / "hostile", demo])
    async with LocalExecutor(LocalConfig(SlotConfig(warm=False))) as executor:
        app = create_app(readers, playground=ScriptedPlayground(executor))
        async with serving(app, "127.0.0.1", 0) as url:
            yield url


def write_hostile_run(path: Path) -> None:
    with create(path) as run:
        for step in (1, 2):
            run.write_metrics(step, "<b>stage</b>", dict.fromkeys(ATTACKS.values(), 0.5))
        traces = []
        for number, (name, text) in enumerate(ATTACKS.items()):
            run.write_event(text, text, {text: text})
            result = ToolResult(ToolStatus.RAISED if number % 2 else ToolStatus.OK, text, wall_s=0.1)
            turn = calling_turn(text, result, text)
            other_tool = replace(turn, calls=(ToolCall(raw=text, name=text, arguments={text: text}),))
            trace = make_trace(
                f"{number} {text}",
                sample_index=number,
                problem_id=text if number % 2 else "shared",
                question=text,
                turns=[turn, other_tool, answering_turn(text, f"{text} {name}")],
                answer=text,
                model=text,
                note=text,
                metadata={text: text, GOLD_KEY: text, f"{SCORE_PREFIX}{text}": "0.5"},
                group_id=text,
            )
            traces.append(trace)
            run.write_trace(trace)
        named = [replace(trace, problem_id="<i>p</i>") for trace in traces]
        run.write_group(make_group("<i>g</i>", 1, named, [Selection.KEPT] * len(traces)))
        record = make_step_record(1)
        engines = tuple(replace(use, engine=text) for use, text in zip(record.engines, ATTACKS.values(), strict=False))
        run.write_step_record(replace(record, engines=engines, critical_rollout=ATTACKS["image error"]))


async def go(page: Page, place: str) -> None:
    """Another place in the same document."""
    await page.ask(f"document.querySelector('main').replaceChildren(), void (location.hash = {json.dumps(place)})")
    await page.wait("document.querySelector('main h1') && !document.querySelector('main[aria-busy]')")
    await page.drawn()


async def settled(page: Page) -> None:
    """Nothing was thrown, blocked or fetched from elsewhere, and nothing is wider than the screen."""
    assert page.complaints == []
    await page.is_true("document.documentElement.scrollWidth <= innerWidth", True)


async def test_the_run_view_draws_every_curve(page: Page, site: str) -> None:
    await page.look(*WIDE)
    await page.open(f"{site}#/run/small")
    await page.shows(".chart h3", ["Reward", "Accuracy", "Entropy, nats", "my own"])
    await page.shows(".chart:nth-child(2) .legend li", ["accuracy", "accuracy, evaluation aime24"])
    await page.shows(".chart:first-child .stage-name", ["one", "two"])
    await page.shows_within(".events", "train finished")
    await page.shows_within(".recipe", "by-hand")
    await page.ask("document.querySelector('svg.plot').focus()")
    await page.press("ArrowRight")
    await page.shows_first(".chart .tip", "step1reward mean0.25")
    await page.press("End")
    await page.shows_first(".chart [aria-live]", "step 2, reward mean 0.5")
    await settled(page)


async def test_a_warm_up_has_charts_of_its_own(page: Page, tmp_path: Path) -> None:
    with create(tmp_path / "warm") as run:
        for step in range(4):
            run.write_metrics(step, "sft", {"loss": 4.0 - step})
        run.write_metrics(0, "eval:sft/held_out", {"accuracy": 0.25})
        for step in (1, 2):
            run.write_metrics(step, "one", {"loss": 0.5, "accuracy": 0.5})
        run.write_metrics(2, "eval:one/held_out", {"accuracy": 0.75})
    async with serving(create_app(open_runs([tmp_path / "warm"])), "127.0.0.1", 0) as url:
        await page.open(url)
        await page.shows(".chart h3", ["Accuracy", "Loss", "sft: Loss"])
        await page.shows(".chart:first-child .legend li", ["accuracy", "accuracy, evaluation held_out"])
        label = await page.ask("document.querySelector('svg.plot').getAttribute('aria-label')")
        assert "evaluation held_out: 25% at step 0, 75% at step 2" in label
    await settled(page)


@pytest.mark.parametrize("size", [PHONE, WIDE])
@pytest.mark.parametrize(
    "lengths",
    [
        {"a name as long as this one": 2, "another of the same length": 1, "and one that has just begun": 1},
        {"WWWWWWWW": 30, "MMMMMMMM": 1, "WMWMWMWM": 1},
        {"one": 1, "two": 1, "three": 1, "four": 1, "five": 1, "six": 1, "seven": 1, "eight": 1, "nine": 1, "ten": 1},
        {"concise": 24, "longer": 8, "hard": 1},
    ],
)
async def test_names_of_stages_do_not_overprint(
    page: Page, tmp_path: Path, size: tuple[int, int], lengths: dict[str, int]
) -> None:
    with create(tmp_path / "staged") as run:
        step = 0
        for stage, num_steps in lengths.items():
            for _ in range(num_steps):
                step += 1
                run.write_metrics(step, stage, {"loss": 1 / step})
    await page.look(*size)
    async with serving(create_app(open_runs([tmp_path / "staged"])), "127.0.0.1", 0) as url:
        await page.open(url)
        await page.wait_for(".stage-name")
        boxes = await page.ask(
            "[...document.querySelectorAll('.stage-name')].map((name) => name.getBoundingClientRect())"
            ".map(({ left, right }) => [left, right])"
        )
        plot = await page.ask("document.querySelector('svg.plot').getBoundingClientRect().right")
        marks = await page.ask("[...document.querySelectorAll('line.stage title')].map((title) => title.textContent)")
    assert all(right <= left for (_, right), (left, _) in pairwise(boxes)), boxes
    assert all(right <= plot for _, right in boxes)
    assert marks == list(lengths)[1:]
    await page.look(*WIDE)
    await settled(page)


async def test_a_run_of_one_step_is_a_table(page: Page, tmp_path: Path) -> None:
    with create(tmp_path / "evaluation") as run:
        run.write_metrics(0, "eval", {"aime24/accuracy": 0.5, "aime24/num_samples": 16})
        run.write_metrics(0, "eval", {"aime25/accuracy": 0.25})
    async with serving(create_app(open_runs([tmp_path / "evaluation"])), "127.0.0.1", 0) as url:
        await page.open(url)
        await page.shows("thead th", ["", "aime24", "aime25"])
        await page.shows("tbody tr", ["accuracy0.50.25", "num samples16–"])
        assert await page.texts(".chart") == []
    await settled(page)


async def test_runs_are_compared(page: Page, site: str) -> None:
    await page.open(f"{site}#/run/small")
    await page.click("fieldset input")
    await page.wait_for(".chart:first-child .legend li", 2)
    await page.shows_within(".chart .legend", "other: reward mean")
    await page.is_true("location.hash", "#/run/small?with=other")
    await page.open(f"{site}#/run/small?with=other")
    await page.shows_within(".chart .legend", "other: reward mean")
    await settled(page)


async def test_a_group_shows_its_rollouts_side_by_side(page: Page, site: str) -> None:
    await page.open(f"{site}#/run/small/step/2")
    await page.wait_for(".row a")
    await page.shows_within(".row", "2 of 4 right")
    await page.shows_first(".row .main", "What is 7^2025 modulo 1000?")
    await page.click(".row a")
    await page.wait_for(".card", 4)
    await page.shows_first("p.gold", "gold 807")
    cards = await page.texts(".card")
    assert "Kept: 1 of 2 successes were kept. Its penalty is 0.00" in cards[0]
    assert "Left out by resampling" in cards[1]
    assert "NameError" in cards[1]
    assert "error penalty0.25" in cards[1]
    for label, count in (("Right", 2), ("Wrong", 2), ("Kept", 2)):
        await page.click(".chip", label)
        await page.wait_for(".card", count)
    await settled(page)


async def test_rollouts_are_filtered_searched_and_linked_to(page: Page, site: str) -> None:
    await page.open(f"{site}#/run/small/step/2?show=rollouts")
    await page.wait_for(".row", 4)
    rows = await page.texts(".row")
    assert "143gold 807What is 7^2025 modulo 1000?" in rows[2]
    for label, count in (("tool error", 1), ("truncated", 1), ("no tool", 2), ("wrong", 1)):
        await page.click(".chip", label)
        await page.wait_for(".row", count)
        await page.shows('.chip[aria-pressed="true"]', [label])
        await page.click(".chip", label)
        await page.wait_for(".row", 4)
    await page.ask("document.querySelector('input[type=search]').focus()")
    await page.call("Input.insertText", text="a guess")
    await page.wait_for(".row", 1)
    await page.is_true("location.hash", "#/run/small/step/2?show=rollouts&text=a+guess")
    link = await page.ask("document.querySelector('.row a').href")
    await page.open(link)
    await page.shows_within("main", "A guess.")
    await settled(page)


async def test_the_list_moves_by_keyboard_and_holds_few_elements(page: Page, tmp_path: Path) -> None:
    with create(tmp_path / "many") as run:
        for number in range(1500):
            run.write_trace(make_trace(f"t{number}", sample_index=number, answer=str(number)))
    async with serving(create_app(open_runs([tmp_path / "many"])), "127.0.0.1", 0) as url:
        await page.open(f"{url}#/run/many/step/1?show=rollouts")
        await page.wait_for(".row a")
        await page.ask("document.querySelector('.row a').focus()")
        await page.press("ArrowDown")
        await page.is_true("document.activeElement.querySelector('.answer')?.textContent.includes('1')", True)
        async with asyncio.timeout(240):
            while await page.ask("document.activeElement.querySelector('.answer')?.textContent") != "1499":
                await page.press("End")
                await asyncio.sleep(0.05)
        assert len(await page.texts(".row")) < 60
        await page.shows_first(".listing [role=status]", "1,500 rollouts. ")
    await settled(page)


async def test_a_trace_is_a_notebook_with_its_tokens(page: Page, site: str) -> None:
    await page.open(f"{site}#/run/small/step/2/trace/0")
    await page.wait_for(".turn", 2)
    await page.shows_within(".turn", "I compute it.")
    await page.shows_first(".code", "print(807)")
    await page.shows_first(".output", "807")
    await page.shows_first(".trace-head p.gold", "gold 807")
    await page.shows_first(".cell.answer .prose", "\\boxed{807}")
    await page.click(".tokens summary")
    await page.wait_for(".turn:first-child .token", 5)
    await page.wait_for(".turn:first-child .token.masked", 2)
    await page.ask("document.querySelector('.token-box').focus()")
    for _ in range(3):
        await page.press("ArrowRight")
    await page.shows_within(".readout", "3 id 2 · entropy 0.5 · log-probability -1 · advantage 1")
    await page.press("End")
    await page.shows_within(".readout", "masked, never trained on")
    options = await page.ask("[...document.querySelectorAll('.toolbar option')].map((option) => option.value)")
    assert options == ["entropy", "log_prob", "advantage"]
    await settled(page)


async def test_scheduler_and_sandbox(page: Page, site: str) -> None:
    await page.open(f"{site}#/run/small/scheduler")
    await page.shows_within("main", "queued 1 s, generating 3 s")
    await page.wait_for(".heatmap", 3)
    await page.wait_for("tbody tr", 2)
    await go(page, "#/run/small/sandbox/2")
    await page.wait_for("table")
    await page.shows_within("table", "raised")
    await page.shows_within("main", "2 calls of 4 rollouts")
    await settled(page)


async def test_the_playground_solves_before_ones_eyes(page: Page, site: str) -> None:
    await page.open(f"{site}#/playground")
    attack = ATTACKS["image error"]
    await page.ask(f"document.querySelector('textarea').value = {json.dumps(attack)}")
    await page.click("button[type=submit]")
    await page.wait("document.querySelector('[role=status]').textContent.startsWith('Answer')")
    await page.shows_first(".prose", "I run it.")
    await page.shows_first(".output", attack)
    await page.shows_first(".cell.answer .prose", f"\\boxed{{{attack}}}")
    await page.shows_first(".notebook > li.reply .prose", f"Sure of {attack}?")
    await page.shows_within("[role=status]", f"Answer: {attack}. answered,")
    assert await page.ask("window.pwned") is None
    await settled(page)


async def test_a_run_is_followed(page: Page, tmp_path: Path) -> None:
    with create(tmp_path / "live") as run:
        run.write_metrics(1, "rl", {"reward_mean": 0.5})
        async with serving(create_app(open_runs([tmp_path / "live"])), "127.0.0.1", 0) as url:
            await page.open(url)
            await page.shows_first("h1 .badge", "running")
            run.write_metrics(2, "rl", {"reward_mean": 0.75, "loss": 1.0})
            await page.wait_for(".chart", 2)
            await settled(page)
            await page.call("Page.navigate", url="about:blank")


async def test_the_demo_opens(page: Page, site: str) -> None:
    await page.look(*WIDE)
    await page.open(f"{site}#/run/demo")
    await page.wait("document.querySelectorAll('.chart path.line').length > 3")
    await go(page, "#/run/demo/step")
    await page.wait_for(".row a")
    await settled(page)


async def test_the_demo_shows_a_tree_that_a_model_sampled(page: Page, site: str, tmp_path: Path) -> None:
    view = RunView(unpack_demo(tmp_path))
    step = view.group_steps()[-1]
    traces = {trace.id: trace for trace in view.traces(step)}
    groups = [[traces[trace_id] for trace_id in group.trace_ids] for group in view.groups(step)]
    number, leaves = next((n, group) for n, group in enumerate(groups) if any(trace.parent for trace in group))
    num_generated = sum(trace.num_generated_tokens for trace in leaves)
    num_saved = sum(trace.num_sampled_tokens for trace in leaves) - num_generated
    assert num_saved > 0
    await page.look(*WIDE)
    await page.open(f"{site}#/run/demo/step/{step}/group/{number}")
    await page.shows_first(".tree p", f"{num_generated:,} tokens generated, {num_saved:,} shared with a parent")
    await page.wait_for(".tree ul ul li", sum(bool(trace.parent) for trace in leaves))
    places = await page.texts(".tree ul ul li")
    assert all("after turn" in place and ("right" in place or "wrong" in place) for place in places)
    await settled(page)


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_view_fits_in_light_and_dark(page: Page, site: str, size: tuple[int, int], scheme: str) -> None:
    await page.look(*size, scheme)
    places = ("", "/step/2", "/step/2?show=rollouts", "/step/2/group/0", "/step/2/trace/0", "/scheduler", "/sandbox/2")
    pictures = set()
    for place in places:
        await page.open(f"{site}#/run/small{place}")
        await settled(page)
        picture = await page.photograph()
        assert picture.startswith(b"\x89PNG")
        pictures.add(picture)
    assert len(pictures) == len(places)
    ink, paper = await page.ask(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert (brightness(ink) < brightness(paper)) == (scheme == "light")


def brightness(colour: str) -> int:
    return sum(map(int, colour.strip("rgb()").split(",")))


NAMELESS = """[...document.querySelectorAll('a, button, select, input, textarea, [role=img], [role=region], nav')]
.filter((item) => {
  const label = item.closest('label') ?? document.querySelector(`label[for="${item.id}"]`);
  return !(item.getAttribute('aria-label') || item.textContent.trim() || label?.textContent);
}).map((item) => item.outerHTML)"""
REPEATED_IDS = """[...document.querySelectorAll('[id]')].map((item) => item.id)
.filter((id, index, all) => all.indexOf(id) !== index)"""
ATTRIBUTES = "[...document.querySelectorAll('*')].flatMap((item) => item.getAttributeNames())"
SHOWN = """document.body.textContent
+ [...document.querySelectorAll('[title], [aria-label]')].map((item) => item.title + item.ariaLabel).join('')"""


async def test_what_a_screen_reader_is_told(page: Page, site: str) -> None:
    for place in ("", "/step/2?show=rollouts", "/step/2/group/0", "/step/2/trace/0", "/scheduler", "/sandbox"):
        await page.open(f"{site}#/run/small{place}")
        assert await page.ask(NAMELESS) == []
        assert await page.ask(REPEATED_IDS) == []
        await page.wait_for("h1", 1)
        assert await page.ask("document.documentElement.lang") == "en"


async def assert_harmless(page: Page, origin: str) -> None:
    assert await page.ask("window.pwned") is None
    assert page.complaints == []
    elsewhere = [url for url in page.requests if not url.startswith((origin, "about:", "data:"))]
    assert elsewhere == []
    assert not set(UNSEEN) & set(await page.ask(SHOWN))
    assert not [name for name in await page.ask(ATTRIBUTES) if name.startswith("on")]
    elements = set(await page.ask("[...document.querySelectorAll('main *, header *')].map((item) => item.localName)"))
    assert not elements & {"script", "style", "img", "iframe", "object", "template", "marquee", "base", "meta", "math"}


@pytest.mark.parametrize("form", ["server", "report"])
async def test_no_text_ever_runs(page: Page, site: str, tmp_path: Path, form: str) -> None:
    await page.look(*WIDE)
    if form == "server":
        base = site
    else:
        write_hostile_run(tmp_path / "hostile")
        report = tmp_path / "report.html"
        report.write_text(render_report(tmp_path / "hostile"), encoding="utf-8")
        base = report.as_uri()
    page.requests.clear()
    await page.open(f"{base}#/run/hostile")
    await assert_harmless(page, base)
    plain = {name: text for name, text in ATTACKS.items() if not set(text) & set(UNSEEN) and "\ud83d" not in text}
    assert len(plain) >= 25
    events = await page.text(".events")
    titles = await page.texts(".chart h3")
    for name, text in plain.items():
        assert text in events, name
        assert text.replace("_", " ") in titles, name
    for place in ("/step/1", "/step/1?show=rollouts", "/scheduler/1", "/sandbox/1"):
        await go(page, f"#/run/hostile{place}")
        await assert_harmless(page, base)
    await go(page, "#/run/hostile/step/1/group/0")
    await page.wait_for(".card", len(ATTACKS))
    await assert_harmless(page, base)
    await go(page, "#/run/hostile/step/1?show=rollouts")
    await page.wait("document.querySelectorAll('.row').length > 10")
    links = [f"#/run/hostile/step/1/trace/{at}" for at in await rollouts_of(page, form)]
    for link, (name, text) in zip(links, ATTACKS.items(), strict=True):
        await go(page, link)
        await page.click(".tokens summary")
        await assert_harmless(page, base)
        if name in plain:
            for selector in (".code", ".output", ".question"):
                await page.shows_first(selector, text)
            await page.shows_within(".cell.reason", text)
            await page.shows_within(".trace-head", text)
    await go(page, "#/run/%3Cscript%3E/step/%00/trace/x?flags=<script>")
    page.complaints = [complaint for complaint in page.complaints if "404" not in complaint]
    await assert_harmless(page, base)


async def rollouts_of(page: Page, form: str) -> list[int]:
    """Where each rollout lies, as the page itself is told."""
    rows = (
        "fetch('api/runs/hostile/steps/1/rollouts').then((answer) => answer.json()).then(({ rows }) => rows"
        if form == "server"
        else "Promise.resolve(JSON.parse(document.getElementById('data').textContent).runs[0].step[0][1].rollouts"
    )
    return list(await page.ask(f"{rows}.map((row) => row.at))"))


async def test_unseen_characters_are_made_visible(page: Page, site: str) -> None:
    expected = {
        "bidirectional": "access ⟨RLO⟩⟨LRI⟩// admin⟨PDI⟩ ⟨LRI⟩ only⟨PDI⟩",
        "ansi": "␛[2J␛[31mred␛]8;;http://evil.example␇link␛]8;;␇",
        "zero width and tags": "8⟨ZWSP⟩0⟨ZWJ⟩7⟨BOM⟩⟨U+E0041⟩",
        "lone surrogate": "half ⟨U+D83D⟩ of a character",
        "null byte": "<scr␀ipt>window.pwned=1</scr␀ipt>",
        "line separators": "x⟨LS⟩window.pwned=1⟨PS⟩",
    }
    await page.open(f"{site}#/run/hostile/step/1/group/0")
    await page.wait_for(".card .output", 2 * len(ATTACKS))
    outputs = await page.texts(".card .output")
    for name, text in expected.items():
        assert outputs[2 * list(ATTACKS).index(name)] == text, "each trace has two outputs"


async def test_a_report_shows_what_the_server_shows(page: Page, tmp_path: Path) -> None:
    write_small_run(tmp_path / "small")
    report = tmp_path / "report.html"
    report.write_text(render_report(tmp_path / "small"), encoding="utf-8")
    await page.look(*PHONE)
    await page.open(report.as_uri())
    await page.wait_for(".chart", 4)
    await page.open(f"{report.as_uri()}#/run/small/step/2?show=rollouts&flags=wrong")
    await page.wait_for(".row", 1)
    await page.open(f"{report.as_uri()}#/run/small/step/2/group/0")
    await page.wait_for(".card", 4)
    await page.open(f"{report.as_uri()}#/run/small/sandbox/2")
    await page.wait_for("table")
    await page.open(f"{report.as_uri()}#/run/small/step/2/trace/123456789")
    await page.shows_within("main", "This cannot be shown")
    await settled(page)


@pytest.mark.parametrize("form", ["server", "report"])
async def test_episodes_of_every_kind(page: Page, tmp_path: Path, form: str) -> None:
    run = tmp_path / "episodes"
    write_episodes_run(run)
    report = tmp_path / "report.html"
    report.write_text(render_report(run), encoding="utf-8")
    starts = [row["at"] for row in open_runs([run])[0].rollouts(1, Query(), 0)["rows"]]
    await page.look(*WIDE)
    async with serving(create_app(open_runs([run])), "127.0.0.1", 0) as url:
        base = f"{url if form == 'server' else report.as_uri()}#/run/episodes"
        await page.open(base)
        titles = [
            "Reward",
            "Accuracy",
            "Parts of the reward",
            "Reward by environment",
            "Accuracy by environment",
            "Tool errors by environment",
            "Rollouts by environment",
            "Entropy, nats",
        ]
        await page.shows(".chart h3", titles)
        await page.shows(".chart:nth-child(3) .legend li", ["alive", "gold"])
        await page.shows(".chart:nth-child(5) .legend li", ["default", "duel", "search"])

        await page.open(f"{base}/step/1?show=rollouts")
        await page.wait_for(".row", 5)
        talk, fault, undecided, found, _ = await page.texts(".row")
        assert talk.startswith("reward 0.625duelkeptalive 0.5, gold 0.125")
        assert f"infrastructure faultduelunscored{FAULT}" in fault
        assert f"undecidedduelunscored{UNDECIDED}" in undecided
        assert found.startswith("rightsearchdoc-7")
        await page.shows(".filters option", ["all", "default", "duel", "search"])
        for name, count in (("environment:duel", 3), ("environment:", 1), ("", 5), ("environment:search", 1)):
            await page.ask(
                f"(select => (select.value = {json.dumps(name)}, select.dispatchEvent(new Event('change'))))"
                "(document.querySelector('.filters select'))"
            )
            await page.wait_for(".row", count)
        await page.is_true("location.hash", "#/run/episodes/step/1?show=rollouts&flags=environment%3Asearch")

        await page.open(f"{base}/step/1/trace/{starts[0]}")
        await page.shows(".notebook > li.reply .prose", ["Nobody answers.", "A dragon!"])
        kinds = await page.ask("[...document.querySelectorAll('.notebook > li')].map((item) => item.className)")
        assert kinds == ["turn", "reply", "turn", "reply", "turn"]
        await page.shows(".earlier .prose", ["Shall we play?", "With pleasure."])
        await page.shows_first(".question", "You stand before a door.")
        await page.shows_first(".parts", "Parts of the rewardalive0.5gold0.125")
        assert "no answer" not in await page.text(".trace-head")
        await settled(page)

        await page.open(f"{base}/step/1/trace/{starts[1]}")
        await page.shows_first(".note", FAULT)

        await page.open(f"{base}/step/1/trace/{starts[3]}")
        await page.shows(".cell.call .tool-name", ["search", "search", "write"])
        await page.shows(".turn:first-child dt", ["query", "limit", "filters", "query", "limit"])
        await page.shows_first(".arguments .long:last-child pre", '{\n  "year": 1999\n}')
        assert LONG_TEXT in await page.texts(".arguments .long pre")
        await page.shows(".code", ["print(7)"])
        assert await page.texts(".arguments .py-keyword") == []
        await page.shows(".code .py-called", ["print"])
        await settled(page)

        await page.open(f"{base}/step/1/group/0")
        await page.wait_for(".card", 3)
        cards = await page.texts(".card")
        assert "UserNobody answers." in cards[0]
        assert FAULT in cards[1]
        await page.click(".chip", "Not scored")
        await page.wait_for(".card", 2)

        await page.open(f"{base}/sandbox/1")
        await page.wait("document.querySelectorAll('table').length === 2")
        await page.wait_for("section:nth-of-type(3) tbody th", 3)
        tools = await page.texts("section:nth-of-type(3) tbody th")
        assert sorted(tools) == ["execute_python_code_with_standard_io", "search", "write"]
        await settled(page)


async def test_rollouts_that_were_forked_are_shown_as_a_tree(page: Page, tmp_path: Path) -> None:
    root = make_trace("t0", sample_index=0, group_id="g0")
    wrong = answering_turn("806")
    branch = make_trace(
        "t1",
        sample_index=1,
        group_id="g0",
        turns=[root.turns[0], wrong],
        parent="t0",
        num_shared_turns=1,
        reward=0.0,
        verdict=Verdict.WRONG,
    )
    group = make_group("g0", 1, [root, branch], [Selection.KEPT] * 2)
    with create(tmp_path / "tree") as run:
        run.write_trace(root)
        run.write_trace(branch)
        run.write_group(replace(group, token_advantages=(((3, 0.0), (4, 0.7)), ((3, None), (4, -0.7)))))
    async with serving(create_app(open_runs([tmp_path / "tree"])), "127.0.0.1", 0) as url:
        await page.look(*WIDE)
        await page.open(f"{url}#/run/tree/step/1/group/0")
        await page.shows_first(".tree p", "11 tokens generated, 3 shared with a parent")
        await page.shows(".tree a", ["Rollout 0", "Rollout 1"])
        await page.shows_within(".tree ul ul li", "after turn 1: wrong, 4 tokens of its own")
        await settled(page)
        await page.ask("document.querySelector('.tree ul ul a').click()")
        await page.wait("!!document.querySelector('.trace-head')")
        await page.shows_within(".trace-head", "t0, after turn 1")
        await settled(page)
