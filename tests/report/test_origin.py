from threefold.report.origin import origin_of


def test_a_file_without_provenance_says_so():
    origin = origin_of({}, "old.json")
    assert origin.short == "old.json"
    assert "old.json: the file does not say" in origin.lines()


def test_a_device_that_an_advisor_measured_stands_first():
    host = {"cpu": "CPU", "cores": 2, "memory_bytes": 2**33}
    origin = origin_of({"machine": host, "facts": {"device": "a card"}, "git_commit": "ab" * 20}, "x")
    assert origin.machine == "a card, CPU, 2 cores; 8 GiB"
    assert origin.short == "commit ababababab · a card, CPU, 2 cores"


def test_fields_of_other_kinds_are_passed_over():
    origin = origin_of({"machine": "fast", "command": 3, "git_commit": None, "date": [], "facts": 1}, "x")
    assert origin == ("x", "", "", "", "")
