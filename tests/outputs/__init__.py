import pytest

pytest.register_assert_rewrite("tests.outputs.output_tests")
