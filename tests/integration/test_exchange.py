"""Two real processes, and the same machines simulated."""

import pytest


@pytest.mark.parametrize("transport", ["unix", "tcp", "tls"])
def test_two_processes_exchange_messages_and_blocks(tow, transport):
    giver, _, taker = tow.json(
        "exchange", "--transport", transport, "--messages", "5000", "--blocks", "5", "--block-size", "300000"
    )
    assert giver["pid"] != taker["pid"]
    assert giver["messages_sent"] == taker["messages_taken"] == 5000
    assert giver["blocks_written"] == taker["blocks_taken"] == 5


def test_simulated_exchange_says_so_and_survives_faults(tow):
    (result,) = tow.json("exchange", "--sim", "--messages", "500")
    assert result["simulated"] is True
    assert result["messages_taken"] >= 500


def test_text_output_says_what_is_simulated(tow):
    assert "simulated" in tow("exchange", "--sim").stdout
    assert "simulated" not in tow("exchange", "--messages", "100", "--blocks", "0").stdout
