"""`tow lower`: a program after each pass, and the steps of each worker."""

import json
import pathlib

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "two_slices.tow"
PROGRAM = EXAMPLE.read_text()


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "ab.tow"
    path.write_text(PROGRAM)
    return str(path)


def changed(tmp_path, old, new):
    assert old in PROGRAM
    path = tmp_path / "changed.tow"
    path.write_text(PROGRAM.replace(old, new))
    return str(path)


def test_the_program_is_printed_as_it_was_read(tow, program):
    done = tow("lower", program, "--after", "verify")
    assert done.returncode == 0
    assert done.stdout == PROGRAM[PROGRAM.index("program") :]


def test_transfers_are_inserted_after_the_nodes_of_the_client(tow, program):
    done = tow("lower", program, "--after", "insert")
    assert done.returncode == 0
    assert "%2 = compute \"B\" function 2 on slice 2 (%4)\n" in done.stdout
    assert "%4 = transfer from 4x1 to slice 2 as 1x4 (%1)\n" in done.stdout


def test_the_placed_program_names_devices_and_executables(tow, program):
    done = tow("lower", program, "--after", "place")
    assert done.returncode == 0
    assert done.stdout.startswith(
        "slice 1 on 0.0, 0.1, 1.0, 1.1\nslice 2 on 2.0, 2.1, 3.0, 3.1\n"
        "executable 1 is function 1 on slice 1\nexecutable 2 is function 2 on slice 2\nprogram"
    )


def test_a_worker_has_its_steps_and_pieces(tow, program):
    done = tow("lower", program, "--worker", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("worker 2: 2 of 3 steps, 4 slots\n")
    assert "receive shard 1 [4:8, 0:2] from worker 0 shard 1 [0:4, 2:4], piece 1, 32 bytes at 32\n" in done.stdout
    assert "worker 3" not in done.stdout.split("\n")[0]


def test_functions_of_many_arguments_are_read(tow, tmp_path):
    count = 500
    arrays = ", ".join(["f32[2]"] * count)
    aliased = ", ".join(f"f32[2] alias {i}" for i in range(count))
    path = tmp_path / "many.tow"
    path.write_text("\n".join([
        "slice 1 on 0.0", f'function 1 "F" for 1 ({arrays}) -> ({aliased})', "program {",
        *[f"  %{i} = argument : f32[2] on slice 1 donated" for i in range(count)],
        f"  %{count} = compute function 1 on slice 1 ({', '.join(f'%{i}' for i in range(count))})",
        f"  %{count + 1} = result (%{count}:{count - 1})", "}"]))
    done = tow("lower", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("worker 0: 1 of 1 steps, 1000 slots\n")


def test_every_sent_piece_is_received(tow, program):
    done = tow("lower", program, "--json")
    assert done.returncode == 0
    workers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [worker["worker"] for worker in workers] == [0, 1, 2, 3]
    sent, received = set(), set()
    for worker in workers:
        (route,) = (step["route"] for step in worker["steps"] if "route" in step)
        for kind, ends in (("sends", sent), ("receives", received)):
            for piece in route[kind]:
                other = piece.pop("worker")
                pair = (worker["worker"], other) if kind == "sends" else (other, worker["worker"])
                ends.add((pair, json.dumps(piece, sort_keys=True)))
    assert len(sent) == 16
    assert sent == received


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("slice 2 on 2-3.0-1", "slice 2 on 2-3", "line 3: '.' is missing"),
        ("slice 2 on 2-3.0-1", "slice 2 on 2.0, 2.0", "line 3: device 2.0 is listed twice"),
        ("host 0, 1", "hots 0, 1", "line 4: expected slice, host, function or program"),
        ("alias 0", "alias 1", "line 5: alias of argument 1, but the function has 1"),
        ("(f32[16,2] as 1x4) ->", "(f32[16,2] as 1x5) ->", "line 6: sharding 1x5 is not for 4 devices"),
        ("(f32[16,2] as 1x4) ->", "(f32[16,2]) ->", "node 2 \"B\": input 0, of node 1 \"A\""),
        ("program \"AB\"", "prog", "line 7: expected slice"),
        ("(%1)\n  %3", "(%9)\n  %3", "node 2 \"B\": input 0 is of node 9"),
        ("%3 = result", "%3 = resutl", "line 11, column 8"),
    ],
)
def test_errors_name_the_file_and_the_cause(tow, tmp_path, old, new, named):
    done = tow("lower", changed(tmp_path, old, new))
    assert done.returncode == 1
    assert done.stdout == ""
    assert named in done.stderr
    assert "changed.tow" in done.stderr


def test_a_worker_without_devices_and_a_missing_file_are_named(tow, program):
    done = tow("lower", program, "--worker", "9")
    assert done.returncode == 1
    assert "no slice has devices of process 9" in done.stderr
    done = tow("lower", "/nonexistent")
    assert done.returncode == 1
    assert "/nonexistent: No such file" in done.stderr


def test_host_functions_and_sequential_steps_are_shown(tow):
    path = str(EXAMPLE.with_name("host_function.tow"))
    done = tow("lower", path, "--after", "split", "--worker", "0")
    assert done.returncode == 0, done.stderr
    assert 'step 1, of node 2 "filter": host function 2, sequential, within 2000 ms' in done.stdout
    assert 'step 2, of node 2 "filter": transfer, sequential' in done.stdout
    done = tow("lower", path, "--after", "split", "--worker", "1", "--json")
    steps = json.loads(done.stdout)["steps"]
    assert [step["sequential"] for step in steps] == [True, True, False]
    assert [step["host"] for step in steps] == [False, True, False]


def test_memory_of_each_slice_is_shown(tow, program, tmp_path):
    rows = tow.json("lower", program, "--memory")
    # A's result takes the place of its argument, which is consumed; B receives a shard of 128 bytes and makes one.
    assert [row["argument_bytes"] for row in rows] == [128, 0]
    assert [row["donated_bytes"] for row in rows] == [128, 0]
    assert [row["peak_bytes"] for row in rows] == [0, 256]
    assert [row["result_bytes"] for row in rows] == [0, 128]
    assert rows[1]["devices"] == [[2, 0], [2, 1], [3, 0], [3, 1]]
    larger = changed(tmp_path, "-> (f32[16,2] as 1x4)", "-> (f32[16,2] as 1x4) temporary 4096")
    assert [row["peak_bytes"] for row in tow.json("lower", larger, "--memory")] == [0, 256 + 4096]
    assert "arguments 128, run at most 0" in tow("lower", program, "--memory").stdout


def test_functions_have_any_number_of_arrays(tow, tmp_path):
    count = 300
    arrays, inputs = ", ".join(["f32[2]"] * count), ", ".join(["%0"] * count)
    path = tmp_path / "wide.tow"
    path.write_text(f'slice 1 on 0.0\nfunction 1 "f" for 1 ({arrays}) -> ({arrays})\nprogram "wide" {{\n'
                    f"  %0 = argument : f32[2] on slice 1\n  %1 = compute function 1 on slice 1 ({inputs})\n"
                    f"  %2 = result (%1:{count - 1})\n}}\n")
    [row] = tow.json("lower", str(path), "--memory")
    assert (row["peak_bytes"], row["result_bytes"]) == (8 * count, 8)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("(f32[4,8] as 4x1) ->", "(f32[4,8] as 4x1, , ) ->", "line 5"),
        ("as 4x1 alias 0)", "as 4x1, )", "line 5: an array has no brackets"),
        ("alias 0)", "alias 0) temporary much", "line 5: a number is missing before 'much'"),
    ],
)
def test_bad_arrays_are_refused(tow, tmp_path, old, new, named):
    done = tow("lower", changed(tmp_path, old, new))
    assert done.returncode == 1
    assert named in done.stderr
