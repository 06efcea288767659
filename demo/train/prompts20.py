PROMPTS = [
    "Hello!",
    "Who are you?",
    "Tell me a short story about a brave fox named Mia.",
    "What is the moon?",
    "Give me three tips for sleeping well.",
    "Write a short poem about the sea.",
    "What is 17 + 25?",
    "What is the capital of Japan?",
    "Spell the word lantern.",
    "Count from 3 to 12.",
    "Reverse this list: red, green, blue, yellow",
    "Repeat this sentence: The old captain painted seven purple doors.",
    "Give me a JSON object with name = Ada, age = 36, city = London.",
    "Say banana 5 times.",
    "Write a short story about a robot who lives in a library.",
    "What is a cathedral?",
    "How do I make pancakes?",
    "My name is Ruby and I live in Lisbon. Where do I live?",
    "I am nervous about my exam.",
    "TOOL:What is the weather in Paris?",
]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def chat(tk, q, think=False):
    tools = None
    if q.startswith("TOOL:"):
        q, tools = q[5:], [TOOL]
    return tk.apply_chat_template(
        [dict(role="user", content=q)], tools=tools, tokenize=False, add_generation_prompt=True, enable_thinking=think
    )
