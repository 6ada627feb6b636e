"""Engine adapters: what engines were recorded to say (tests/data/engines), and what no page may do to us."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.record import LARGEST
from tests.costs import Calls
from workers.engines import ADAPTERS, EngineLoad, recognise

PAGES = Path(__file__).parent.parent / "data" / "engines"
VLLM_PAGE = (PAGES / "vllm-0.32.0-metrics.txt").read_bytes()
LLAMA_PAGE = (PAGES / "llama.cpp-11434-metrics.txt").read_bytes()
SGLANG_PAGE = (PAGES / "sglang-derived-metrics.txt").read_bytes()
SGLANG_LOADS = (PAGES / "sglang-derived-loads.json").read_bytes()
SGLANG_GET_LOAD = (PAGES / "sglang-derived-get_load.json").read_bytes()
TGI_PAGE = (PAGES / "tgi-derived-metrics.txt").read_bytes()
ALL_PAGES = (VLLM_PAGE, LLAMA_PAGE, SGLANG_PAGE, TGI_PAGE)


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


@pytest.mark.parametrize("name", ["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"])
def test_hits_of_the_prefix_cache_are_summed_over_ranks(name):
    """Under the old name too; when it was made is none of them."""
    created = name.replace("total", "created")
    load = vllm(f'{name}{{engine="0"}} 16.0', f'{name}{{engine="1"}} 32.0', f'{created}{{engine="0"}} 1.7e+09')
    assert load == EngineLoad(prefix_cache_hits=48.0)


def test_the_recorded_page_of_llama_cpp_is_recognised_and_read():
    """It counts slots and what waits for one, and has no gauge of its KV cache: that is unknown."""
    adapter = recognise(LLAMA_PAGE)
    assert adapter.kind == "llamacpp"
    assert adapter.read_load(LLAMA_PAGE) == EngineLoad(running=0, waiting=0)
    busy = LLAMA_PAGE.replace(b"requests_processing 0", b"requests_processing 4")
    busy = busy.replace(b"requests_deferred 0", b"requests_deferred 9")
    assert adapter.read_load(busy) == EngineLoad(running=4, waiting=9)


def test_a_page_of_tgi_is_recognised_and_read():
    """The running batch, and the queue."""
    adapter = recognise(TGI_PAGE)
    assert adapter.kind == "tgi"
    assert adapter.read_load(TGI_PAGE) == EngineLoad(running=4, waiting=7)


def test_a_tgi_that_has_had_no_request_says_nothing():
    """Its gauges come with the first request; until then they are unknown, and not zero."""
    assert ADAPTERS["tgi"].read_load(b"# TYPE tgi_request_count counter\ntgi_request_count 0\n") == EngineLoad()


def test_a_page_of_sglang_is_recognised_and_read():
    """Ranks are summed; their tensor-parallel parts, and priorities beside their sum, are not counted twice."""
    adapter = recognise(SGLANG_PAGE)
    assert adapter.kind == "sglang"
    assert adapter.read_load(SGLANG_PAGE) == EngineLoad(
        running=32, waiting=3, kv_usage=0.93, kv_capacity_tokens=200_000
    )


def test_the_newer_load_page_of_sglang_says_the_same():
    """One entry a rank: requests and capacity summed, the fullest KV cache."""
    assert ADAPTERS["sglang"].read_load(SGLANG_LOADS) == ADAPTERS["sglang"].read_load(SGLANG_PAGE)


def test_the_older_load_page_of_sglang_counts_requests_only():
    """What waits is in its number of requests, and taken out of it; the KV cache is unknown."""
    assert ADAPTERS["sglang"].read_load(SGLANG_GET_LOAD) == EngineLoad(running=32, waiting=3)


@pytest.mark.parametrize("value", ["null", "-1", "true", '"12"', "1e999"])
def test_a_rank_of_sglang_that_says_no_number_makes_the_sum_unknown(value):
    """The newer page and the older one; what the other ranks say of other things is still read."""
    sglang = ADAPTERS["sglang"]
    load = sglang.read_load(SGLANG_LOADS.replace(b'"num_running_reqs":12', f'"num_running_reqs":{value}'.encode()))
    assert (load.running, load.waiting) in {(None, 3), (None, None)}
    load = sglang.read_load(SGLANG_GET_LOAD.replace(b'"num_reqs":15', f'"num_reqs":{value}'.encode()))
    assert (load.running, load.waiting) in {(None, 3), (None, None)}


@pytest.mark.parametrize(
    "page", [b"{}", b"[]", b"[1]", b'{"loads":[]}', b'{"loads":{}}', b"{" * 100_000, b'{"load":3}']
)
def test_a_load_page_of_another_shape_is_unknown(page):
    """Nothing is guessed, and nothing raised."""
    assert ADAPTERS["sglang"].read_load(page) == EngineLoad()


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


@pytest.mark.parametrize("page", [None, b"", b"other:requests_processing 3\n", b"\xff\xfe\x00"])
def test_an_unknown_page_is_a_plain_openai_server_that_says_nothing(page):
    """Its load is unknown, and the worker's own counts are all there is."""
    adapter = recognise(page)
    assert adapter.kind == "openai"
    assert adapter.read_load(page or b"") == EngineLoad()


@pytest.mark.parametrize("owner", ["vllm", "sglang", "llamacpp"])
def test_an_engine_without_a_readable_metrics_page_is_known_by_the_owner_of_its_models(owner):
    """Its metrics may want a key, or not be switched on."""
    assert recognise(None, owner).kind == owner
    assert recognise(b"", owner).kind == owner


@pytest.mark.parametrize("owner", ["", "library", "organization-owner"])
def test_an_owner_that_nobody_knows_is_a_plain_openai_server(owner):
    """An engine without an owner is not taken for one that has none."""
    assert recognise(None, owner).kind == "openai"


def test_a_page_is_that_of_the_engine_that_speaks_in_it_whoever_owns_the_models():
    """A server may name anybody as the owner of its models; its metrics have its own prefix."""
    for page in ALL_PAGES:
        assert recognise(page, "vllm").kind == recognise(page).kind
    assert [recognise(page).kind for page in ALL_PAGES] == ["vllm", "llamacpp", "sglang", "tgi"]


def test_a_page_of_five_thousand_lines_costs_no_more_calls_than_a_short_one():
    """Only lines that have a wanted name are looked at; what lies between is searched in C."""
    bucket = 'vllm:request_latency_seconds_bucket{{engine="0",le="{}",model_name="tiny"}} 7.0\n'
    others = "".join(map(bucket.format, range(5_000))).encode()
    long_page = others[: len(others) // 2] + b"\n" + VLLM_PAGE + others[len(others) // 2 :]
    vllm_adapter = ADAPTERS["vllm"]
    assert long_page.count(b"\n") > 5_000
    assert vllm_adapter.read_load(long_page) == vllm_adapter.read_load(VLLM_PAGE)
    assert Calls.of(vllm_adapter.read_load, long_page) == Calls.of(vllm_adapter.read_load, VLLM_PAGE)


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
