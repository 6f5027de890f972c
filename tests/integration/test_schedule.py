"""`tow schedule`: schedules on the terminal, as CSV, JSON and SVG, and its errors."""

import json
import xml.etree.ElementTree

import pytest

GENERATORS = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
SVG = "{http://www.w3.org/2000/svg}"


def simulated(tow, *arguments):
    done = tow("schedule", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(tow, *arguments, status=1, **options):
    done = tow("schedule", *arguments, **options)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.startswith("tow schedule: ")
    return done.stderr


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "schedule.csv"
        path.write_text(text)
        return str(path)

    return write


def test_the_timeline_is_drawn_without_colours(tow):
    done = tow("schedule", "1f1b", "-s", "2", "-m", "3", "--width", "100")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "   0 |F0ffF1ff........B0bbbbbbF2ffB1bbbbbb....B2bbbbbb"
    assert lines[1] == "   1 |....F0ffB0bbbbbbF1ffB1bbbbbbF2ffB2bbbbbb........"
    assert "\x1b" not in done.stdout
    assert lines[-1] == (
        "1f1b: 2 stages on 2 devices, 3 microbatches: step 12 ms, bubble 25.0%; "
        "without a barrier 12 ms, 25.0%"
    )


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", GENERATORS)
def test_the_timeline_fits_the_width(tow, name, width):
    done = tow("schedule", name, "-s", "4", "-m", "40", "--width", str(width))
    assert done.returncode == 0
    rows = [line for line in done.stdout.splitlines() if line[4:6] == " |"]
    assert len(rows) == 4
    assert all(len(row) <= width for row in rows)


def test_closed_forms_come_out(tow):
    stages, microbatches = 4, 16
    times = {"gpipe": 3 * 19, "1f1b": 3 * 19, "interleaved": 3 * 35, "zb-h1": 3 * 16 + 3}
    for name, units in times.items():
        step = simulated(tow, name, "-s", str(stages), "-m", str(microbatches))
        assert step["step_ns"] == units * 1_000_000
    for name in ("zb-h2", "zb-v"):
        step = simulated(tow, name, "-s", str(stages), "-m", str(microbatches))
        assert step["period_bubble_ppm"] == 0
    peaks = simulated(tow, "1f1b", "-s", "4", "-m", "16")
    assert [device["peak_activations"] for device in peaks["devices"]] == [4, 3, 2, 1]


def test_every_action_has_its_time(tow):
    step = simulated(tow, "1f1b", "-s", "2", "-m", "2", "--forward", "10,20", "--backward", "5", "--weight", "5")
    actions = {a["action"]: (a["start_ns"], a["end_ns"]) for d in step["devices"] for a in d["actions"]}
    assert actions["0F0"] == (0, 10)
    assert actions["1F0"] == (10, 30)
    assert actions["1B0"] == (30, 40)
    assert actions["0B1"] == (70, 80)
    assert step["step_ns"] == 80


@pytest.mark.parametrize("name", GENERATORS)
def test_a_printed_schedule_is_read_again(tow, write, name):
    arguments = (name, "-s", "3", "-m", "6", "--remat", "--sends", "--all-reduce", "5", "--update", "5")
    printed = tow("schedule", *arguments, "--csv")
    assert printed.returncode == 0
    again = tow("schedule", "--file", write(printed.stdout), "--csv")
    assert again.returncode == 0, again.stderr
    assert again.stdout == printed.stdout


def lowered_calls(tow, path):
    """The names of the calls of each worker, in the order of its steps."""
    program = json.loads(tow("lower", path, "--after", "verify", "--json").stdout)
    names = [node["name"] for node in program["nodes"]]
    done = tow("lower", path, "--json")
    assert done.returncode == 0, done.stderr
    workers = [json.loads(line) for line in done.stdout.splitlines()]
    return [[names[step["node"]] for step in worker["steps"] if "executable" in step] for worker in workers]


@pytest.mark.parametrize("sends", [[], ["--sends"]])
@pytest.mark.parametrize("name", GENERATORS)
def test_the_lowered_program_has_the_order_of_the_schedule(tow, tmp_path, name, sends):
    arguments = ("schedule", name, "-s", "3", "-m", "6", "--remat", "--update", "5", "--all-reduce", "5", *sends)
    rows = [row.split(",") for row in tow(*arguments, "--csv").stdout.splitlines()]
    path = tmp_path / "pipeline.tow"
    path.write_text(tow(*arguments, "--program").stdout)
    for row, calls in zip(rows, lowered_calls(tow, str(path)), strict=True):
        actions = [action for action in row if "SEND" not in action and "AR" not in action]
        assert [call for call in calls if "A" not in call] == actions
        for stage in {action.split("U")[0] for action in row if "U" in action}:
            sums = [call for call in calls if call.startswith(f"{stage}A")]
            assert sums == [f"{stage}A{microbatch}" for microbatch in range(1, 6)]


def test_gradients_are_summed_in_order_under_every_schedule(tow, tmp_path, write):
    path = tmp_path / "pipeline.tow"
    path.write_text(tow("schedule", "--file", write("0F0,0F1,0F2,0B2,0B1,0B0\n"), "--program").stdout)
    (calls,) = lowered_calls(tow, str(path))
    assert calls == ["0F0", "0F1", "0F2", "0B2", "0B1", "0B0", "0A1", "0A2"]


def test_recomputation_and_memory(tow):
    arguments = ("gpipe", "-s", "2", "-m", "8", "--activation", "1G", "--input", "10M", "--parameters", "2G")
    kept = simulated(tow, *arguments)
    again = simulated(tow, *arguments, "--remat")
    assert kept["devices"][0]["peak_bytes"] == 10_000_000_000
    assert again["devices"][0]["peak_bytes"] == 3_080_000_000
    assert again["devices"][0]["memory"][0] == [0, 2_010_000_000]
    message = refused(tow, *arguments, "--memory", "9G")
    assert "device 0, action 7: 0F7 brings the memory in use to 10000000000 bytes" in message
    assert tow("schedule", *arguments, "--memory", "9G", "--remat").returncode == 0


def test_communication_takes_time(tow):
    quiet = simulated(tow, "1f1b", "-s", "4", "-m", "16")
    slow = ("1f1b", "-s", "4", "-m", "16", "--edge", "8M", "--bandwidth", "10G", "--latency", "100k")
    assert simulated(tow, *slow)["step_ns"] > quiet["step_ns"]
    assert simulated(tow, *slow, "--warmup", "b")["step_ns"] < simulated(tow, *slow)["step_ns"]


def test_the_picture_is_well_formed(tow, tmp_path):
    path = tmp_path / "zb-v.svg"
    done = tow("schedule", "zb-v", "-s", "2", "-m", "3", "--activation", "1M", "--svg", str(path))
    assert done.returncode == 0
    assert "zb-v: 4 stages on 2 devices" in done.stdout
    root = xml.etree.ElementTree.parse(path).getroot()
    titles = [title.text for title in root.iter(f"{SVG}title")]
    assert len(titles) == 2 * 2 * 3 * 3
    assert titles[0] == "0F0 on device 0: 0 to 1 ms"
    assert "href" not in path.read_text()


def test_the_name_of_a_file_cannot_break_the_picture(tow, tmp_path):
    path = tmp_path / "a<b&c.csv"
    path.write_text("0F0,0B0\n")
    done = tow("schedule", "--file", str(path), "--svg", "-")
    assert done.returncode == 0
    xml.etree.ElementTree.fromstring(done.stdout)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("0F0,0B0\n1F0,1X0\n", "row 2, column 2: '1X0'"),
        ("0F0,0B0\n\n1F0,1B0\n", "row 2 has no action"),
        ("0F0,0W0,0I0\n", "device 0, action 1: 0W0 comes before 0I0"),
        ("0F0,0B0,0B0\n", "device 0, action 2: 0B0 is done already, by action 1"),
        ("0F0,0B0,1F0\n1B0\n", "device 1, action 0: 1B0 is on the wrong device"),
        ("0F0,0B0\n1F0\n", "device 1: 1B0 (or 1I0 and 1W0) is missing"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
            "deadlock: device 0 is at action 1, 0B0, and waits for 1B0 of device 1; "
            "device 1 is at action 1, 1F1, and waits for 0F1 of device 0",
        ),
    ],
)
def test_wrong_schedules_are_refused(tow, write, text, named):
    path = write(text)
    message = refused(tow, "--file", path)
    assert named in message
    assert path in message


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["interleaved", "-s", "4", "-m", "6"], "multiple of 4"),
        (["zb-h1", "-s", "4", "-m", "6", "--warmup", "b"], "only 1f1b"),
        (["1f1b", "-s", "4", "-m", "6", "--forward", "1,2,3"], "'1,2,3'"),
        (["1f1b", "-s", "4", "-m", "6", "--latency", "fast"], "'fast'"),
        (["--file", "no-such-file"], "no-such-file"),
    ],
)
def test_options_that_do_not_fit_are_named(tow, arguments, named):
    assert named in refused(tow, *arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "name a schedule"),
        (["2f2b", "-s", "2", "-m", "2"], "2f2b"),
        (["1f1b", "-m", "2"], "--stages"),
        (["1f1b", "-s", "2"], "--microbatches"),
        (["1f1b", "-s", "0", "-m", "2"], "--stages"),
        (["1f1b", "-s", "2", "-m", "2", "--warmup", "c"], "'c'"),
        (["1f1b", "-s", "2", "-m", "2", "--file", "x"], "not both"),
        (["1f1b", "-s", "2", "-m", "2", "--csv", "--program"], "one of --csv"),
    ],
)
def test_usage_errors(tow, arguments, named):
    message = refused(tow, *arguments, status=2)
    assert named in message.splitlines()[0]
    assert "--help" in message
