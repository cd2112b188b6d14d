import pytest

# Its assertions say what they compared, like those of tests.
pytest.register_assert_rewrite("tests.agent.home_contract")
