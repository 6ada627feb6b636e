"""Engine adapters: what vLLM 0.32.0 was recorded to say, and what no page may do to us."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.record import LARGEST
from workers.engines import ADAPTERS, EngineLoad, recognise

VLLM_PAGE = (Path(__file__).parent.parent / "data" / "engines" / "vllm-0.32.0-metrics.txt").read_bytes()

#: Derived from SGLang's documentation (started with --enable-metrics), not recorded.
SGLANG_PAGE = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"} 162.0
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"} 2826.0
# TYPE sglang:token_usage gauge
sglang:token_usage{model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"} 0.28
# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{model_name="meta-llama/Llama-3.1-8B-Instruct",tp_rank="0"} 86.5
"""


def vllm(*lines: str) -> EngineLoad:
    """Load in a page of vLLM with these samples."""
    return ADAPTERS["vllm"].read_load("\n".join(lines).encode() + b"\n")


def test_the_recorded_page_of_vllm_is_recognised_and_read():
    """An idle engine says zero, and a zero that is said is a measurement."""
    adapter = recognise(VLLM_PAGE)
    assert adapter.kind == "vllm"
    assert adapter.read_load(VLLM_PAGE) == EngineLoad(running=0, waiting=0, kv_usage=0.0, kv_capacity_tokens=4_194_304)


def test_waiting_by_reason_is_not_counted_as_waiting():
    """The recorded page has a gauge whose name begins like another's."""
    page = VLLM_PAGE.replace(b'reason="capacity"} 0.0', b'reason="capacity"} 7.0')
    assert ADAPTERS["vllm"].read_load(page).waiting == 0


def test_a_page_of_sglang_is_recognised_and_read():
    """Running, queued, and the share of tokens in use."""
    adapter = recognise(SGLANG_PAGE)
    assert adapter.kind == "sglang"
    assert adapter.read_load(SGLANG_PAGE) == EngineLoad(running=162, waiting=2826, kv_usage=0.28)


def test_the_kv_gauge_is_read_under_its_old_name_too():
    """The gauge was renamed; whoever reads only one name reads nothing on the other versions."""
    assert vllm('vllm:kv_cache_usage_perc{engine="0"} 0.5').kv_usage == 0.5
    assert vllm('vllm:gpu_cache_usage_perc{engine="0"} 0.5').kv_usage == 0.5


def test_several_ranks_are_summed_and_the_fullest_decides():
    """Requests add up over data-parallel engines; a mean of KV usage would hide the one that is full."""
    load = vllm(
        'vllm:num_requests_running{engine="0"} 3.0',
        'vllm:num_requests_running{engine="1"} 4.0',
        'vllm:num_requests_waiting{engine="0"} 0.0',
        'vllm:num_requests_waiting{engine="1"} 9.0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.1',
        'vllm:kv_cache_usage_perc{engine="1"} 0.99',
    )
    assert load == EngineLoad(running=7, waiting=9, kv_usage=0.99)


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf", "-Inf", "true", "1,5", "0x10"])
def test_a_rank_that_says_no_number_makes_the_gauge_unknown(value):
    """The others' sum would count the silent rank as idle."""
    load = vllm(
        'vllm:num_requests_running{engine="0"} 3.0',
        f'vllm:num_requests_running{{engine="1"}} {value}',
        f'vllm:num_requests_waiting{{engine="0"}} {value}',
        'vllm:kv_cache_usage_perc{engine="0"} 0.2',
        f'vllm:kv_cache_usage_perc{{engine="1"}} {value}',
    )
    assert load == EngineLoad()


def test_a_share_above_one_is_unknown():
    """A percentage where a share was expected is not believed."""
    assert vllm("vllm:kv_cache_usage_perc 42.0").kv_usage is None


def test_an_amount_beyond_belief_is_unknown():
    """Nor does the sum of two finite numbers that is infinite stop the watch."""
    ranks = [f'vllm:num_requests_running{{engine="{rank}"}} 1e308' for rank in range(2)]
    assert vllm(*ranks).running is None
    assert vllm("vllm:num_requests_waiting 1e300").waiting is None


def test_missing_names_are_unknown_never_zero():
    """A page that speaks of other things."""
    assert vllm("vllm:num_preemptions_total 3.0") == EngineLoad()
    assert ADAPTERS["sglang"].read_load(b"") == EngineLoad()


def test_labels_may_hold_anything():
    """A closing brace, blanks and escaped quotes inside a label's value; a time stamp after the value."""
    load = vllm('vllm:num_requests_running{model_name="a} b\\" 7"} 3.0 1700000000000', "vllm:num_requests_waiting\t2")
    assert (load.running, load.waiting) == (3, 2)


@pytest.mark.parametrize("page", [None, b"", b"llamacpp:requests_processing 3\n", b"\xff\xfe\x00"])
def test_an_unknown_page_is_a_plain_openai_server_that_says_nothing(page):
    """Its load is unknown, and the worker's own counts are all there is."""
    adapter = recognise(page)
    assert adapter.kind == "openai"
    assert adapter.read_load(page or b"") == EngineLoad()


NUMBERS = st.floats().map(repr) | st.sampled_from(["1e400", "nan", "", "{", "9" * 400])


@given(st.lists(st.tuples(st.sampled_from(["running", "waiting"]), NUMBERS), max_size=8), st.binary(max_size=40))
def test_no_page_raises_and_what_is_read_can_be_published(samples, rubbish):
    """Whatever numbers and bytes a page holds, a reading is a count of at most 2**53 or unknown."""
    page = b"".join(f"vllm:num_requests_{name} {value}\n".encode() for name, value in samples) + rubbish
    for adapter in ADAPTERS.values():
        load = adapter.read_load(page)
        for count in (load.running, load.waiting, load.kv_capacity_tokens):
            assert count is None or 0 <= count <= LARGEST


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('block_size="128",kv_cache_size_tokens="4194304",num_gpu_blocks="32768"', 4_194_304),
        ('block_size="16",num_gpu_blocks="None"', None),
        ('block_size="999999999999999",num_gpu_blocks="999999999999999"', None),
        ("", None),
    ],
)
def test_the_capacity_of_the_cache_is_read_where_it_can_be_believed(labels, tokens):
    """In tokens, or in blocks and their size; what no record can hold is unknown."""
    assert vllm(f"vllm:cache_config_info{{{labels}}} 1.0").kv_capacity_tokens == tokens
