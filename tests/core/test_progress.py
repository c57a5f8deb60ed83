"""Progress: lines in a file or pipe, bars on a terminal, nothing when silent."""

import io
import re

from rich.console import Console

from shoal.core.progress import Lines, Progress, Silent, Terminal, progress_for


def _work(progress: Progress) -> None:
    with progress.task("count", 3_000_000, "bytes") as task:
        task.advance(1_500_000)
        task.say("half")
        task.advance(1_500_000)
        task.say("")
    progress.note("done")


def test_lines_say_the_amount_and_the_time_at_the_end():
    stream = io.StringIO()
    _work(Lines(stream))
    assert re.fullmatch(r"count: 3\.0 MB/3\.0 MB in \d+\.\d s\ndone\n", stream.getvalue())


def test_a_long_task_says_where_it_is_now_and_then():
    stream = io.StringIO()
    with Lines(stream, every_s=0).task("walk", 2, "steps") as task:
        task.advance()
        task.say("loss 2.5")
        task.advance()
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["walk: 1 steps/2 steps", "walk: 2 steps/2 steps (loss 2.5)"]
    assert lines[2].startswith("walk: 2 steps/2 steps (loss 2.5) in ")


def test_a_terminal_keeps_one_line_per_finished_task():
    stream = io.StringIO()
    progress = Terminal(Console(file=stream, force_terminal=True, width=100))
    with progress.task("outer") as outer:
        _work(progress)
        outer.advance()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert re.search(r"count: 3\.0 MB in \d+\.\d s", text)
    assert re.search(r"outer: 1 in \d+\.\d s", text)


def test_markup_in_a_note_is_plain_text():
    stream = io.StringIO()
    Terminal(Console(file=stream, force_terminal=True, width=100)).note("[red]as it is[/red] [1]")
    assert "[red]as it is[/red] [1]" in stream.getvalue()


def test_a_stream_that_is_no_terminal_gets_lines():
    assert isinstance(progress_for(io.StringIO()), Lines)
    _work(Silent())
