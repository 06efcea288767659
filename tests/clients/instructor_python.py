"""`instructor` against `lily serve`: python instructor_python.py PATH_TO_LILY"""

import json
import sys
from importlib.metadata import version

import openai
from cases import KEY, LONG_PROMPT, REQUEST_SECONDS, raises, run, says
from lily_server import lily_serve
from pydantic import BaseModel

import instructor
from instructor.core import InstructorRetryException


class Trip(BaseModel):
    city: str
    days: int


TRIP = {"city": "Lisbon", "days": 2}


def connect(url, mode, key="none"):
    client = openai.OpenAI(base_url=url + "/v1", api_key=key, timeout=REQUEST_SECONDS, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def ask(client, text="Two days in Lisbon, please.", **options):
    options = {"max_retries": 1, **options}
    messages = [{"role": "user", "content": text}]
    return client.create(model="default", response_model=Trip, messages=messages, **options)


def fenced(value):
    return says(f"```json\n{json.dumps(value)}\n```")


def reads_json_in_a_fence(lily):
    with lily_serve(lily, script=[fenced(TRIP)]) as url:
        trip = ask(connect(url, instructor.Mode.MD_JSON))
        assert trip.model_dump() == TRIP, trip


def asks_again_after_an_answer_that_is_no_trip(lily):
    with lily_serve(lily, script=[fenced({"city": "Lisbon", "days": "a few"}), fenced(TRIP)]) as url:
        trip = ask(connect(url, instructor.Mode.MD_JSON), max_retries=2)
        assert trip.model_dump() == TRIP, trip


def raises_what_the_server_said(lily):
    with lily_serve(lily, "--api-key", KEY, script=[fenced(TRIP)]) as url:
        client = connect(url, instructor.Mode.MD_JSON, key=KEY)
        error = raises(InstructorRetryException, lambda: ask(client, LONG_PROMPT))
        assert "prompt is too long" in str(error), error
        error = raises(InstructorRetryException, lambda: ask(connect(url, instructor.Mode.MD_JSON, key="wrong")))
        assert "the API key is wrong" in str(error), error


if __name__ == "__main__":
    cases = [reads_json_in_a_fence, asks_again_after_an_answer_that_is_no_trip, raises_what_the_server_said]
    run(f"instructor {version('instructor')}", sys.argv[1], cases)
