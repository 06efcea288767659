"""Prompts for the teacher: topics x task types, with casual variants."""

import json, random
from lists import *

WN = json.load(open("wn.json"))


def an(w):
    return ("an " if w[0].lower() in "aeiou" else "a ") + w


def topic(r):
    k = r.random()
    if k < 0.22:
        return r.choice(SCIENCE)
    if k < 0.32:
        return an(r.choice(ANIMALS)) if r.random() < 0.5 else r.choice(ANIMALS) + "s"
    if k < 0.40:
        return r.choice(FOODS)
    if k < 0.50:
        return r.choice(FEELINGS)
    if k < 0.58:
        return r.choice(ACTIVITIES)
    if k < 0.66:
        return an(r.choice(OBJECTS))
    if k < 0.72:
        return an(r.choice(PLACES))
    if k < 0.76:
        return r.choice(list(COUNTRIES)) if r.random() < 0.5 else r.choice(list(COUNTRIES.values()))
    w = WN[min(int(r.expovariate(1 / 700)), len(WN) - 1)][1]
    return an(w) if r.random() < 0.6 else w


def story(r):
    n, m = r.sample(NAMES, 2)
    a, b = r.choice(ADJ), r.choice(ADJ)
    an1, an2, pl, ob, fe, jo, we = (
        r.choice(ANIMALS),
        r.choice(ANIMALS),
        r.choice(PLACES),
        r.choice(OBJECTS),
        r.choice(FEELINGS),
        r.choice(JOBS),
        r.choice(WEATHER),
    )
    return r.choice(
        [
            f"Write a short story about {an(a)} {an1} named {n}.",
            f"Tell me a story about {an(an1)} and {an(an2)} who become friends.",
            f"Write a short story about a child named {n} who finds {an(ob)} in the {pl}.",
            f"Tell me a short story about {n} and {m} at the {pl}.",
            f"Write a story about {an(a)} {jo} named {n}.",
            f"Can you tell me a bedtime story about {an(a)} {an1}?",
            f"Write a short story about {we} and {an(a)} {an1}.",
            f"Tell me a story about {an(ob)} and {an(a)} {jo}.",
            f"Write a short fable about {an(an1)} and {an(an2)} that teaches {fe}.",
            f"Write a story that begins with this sentence: {n} opened the door of the {pl}.",
            f"Write a short story about {n}, {an(a)} {an1} who wants to see the {pl}.",
            f"Tell me a funny story about {an(an1)} that loves {r.choice(FOODS)}.",
            f"Please write a little story about {fe} with {an(an1)} in it.",
            f"Write a short story about two friends, {n} and {m}, who like {r.choice(ACTIVITIES)}.",
            f"tell me a story about {an(an1)} in a {pl}",
            f"Write a short story set in {an(pl)} on a day with {we}.",
        ]
    )


def ask(r):
    t = topic(r)
    k = r.random()
    if k < 0.42:
        return "explain", r.choice(
            [
                f"What is {t}?",
                f"Explain {t} in simple words.",
                f"Tell me about {t}.",
                f"What can you tell me about {t}?",
                f"Can you explain {t} to me?",
                f"what is {t}",
                f"tell me about {t}",
                f"Explain {t} to a child.",
                f"I want to learn about {t}.",
                f"Give me a short explanation of {t}.",
                f"What do people use {t} for?",
                f"Write a short paragraph about {t}.",
                f"Describe {t}.",
                f"Why is {t} important?",
                f"Share some interesting facts about {t}.",
                f"How would you describe {t} to a friend?",
                f"Write a few sentences about {t}.",
                f"What should I know about {t}?",
                f"Please explain what {t} means.",
            ]
        )
    if k < 0.55:
        a = r.choice(ACTIVITIES)
        n = r.choice(["three", "four", "five", "some", "a few", "3", "5"])
        return "tips", r.choice(
            [
                f"Give me {n} tips for {a}.",
                f"What are {n} good tips for {a}?",
                f"How do I get better at {a}?",
                f"Why do people enjoy {a}?",
                f"What are the benefits of {a}?",
                f"I am new to {a}. What should I do first?",
                f"How can I start {a}?",
                f"Do you have any advice about {a}?",
                f"Write a short guide to {a}.",
                f"I have trouble with {a}. Can you help me?",
            ]
        )
    if k < 0.62:
        j = r.choice(JOBS)
        return "job", r.choice(
            [
                f"What does {an(j)} do?",
                f"Describe a day in the life of {an(j)}.",
                f"How do I become {an(j)}?",
                f"Why is the work of {an(j)} important?",
                f"What skills does {an(j)} need?",
                f"Write a thank you note to {an(j)}.",
                f"Tell me about the job of {an(j)}.",
            ]
        )
    if k < 0.625:
        x = r.choice([r.choice(ANIMALS), r.choice(WEATHER), r.choice(PLACES), r.choice(FEELINGS), r.choice(OBJECTS)])
        return "poem", r.choice(
            [
                f"Write a short poem about {x}.",
                f"Write a poem about {x}.",
                f"Can you write a four-line poem about {x}?",
                f"write me a little poem about {x}",
                f"Make up a rhyme about {x}.",
                f"Write a haiku about {x}.",
            ]
        )
    if k < 0.68:
        a, b = r.choice(
            [(ANIMALS, ANIMALS), (FOODS, FOODS), (PLACES, PLACES), (JOBS, JOBS), (OBJECTS, OBJECTS), (SCIENCE, SCIENCE)]
        )
        x, y = r.sample(a, 2)
        return "compare", r.choice(
            [
                f"What is the difference between {x} and {y}?",
                f"Compare {x} and {y}.",
                f"How are {x} and {y} alike?",
                f"Which is better, {x} or {y}?",
            ]
        )
    if k < 0.86:
        n = r.choice(NAMES)
        fe = r.choice(FEELINGS)
        p = r.choice(PLACES)
        w = r.choice(WEATHER)
        return "write", r.choice(
            [
                f"Write a short letter to a friend about {w}.",
                f"Write a diary entry about a visit to the {p}.",
                f"Describe the {p} in a few sentences.",
                f"Write a short birthday message for {n}.",
                f"Write a short note to thank {n} for the {r.choice(OBJECTS)}.",
                f"Write an email to invite {n} to the {p}.",
                f"Describe {w}.",
                f"What is {fe} and why does it matter?",
                f"How can I show {fe}?",
                f"Write a kind message to someone who feels {r.choice(['sad', 'tired', 'alone', 'worried', 'nervous'])}.",
                f"Describe {an(r.choice(ADJ))} {r.choice(ANIMALS)}.",
                f"Write a description of {an(r.choice(OBJECTS))} for a shop.",
                f"Write a short speech about {fe}.",
            ]
        )
    if k < 0.93:
        f = r.choice(FOODS)
        return "food", r.choice(
            [
                f"How do I make {f}?",
                f"Give me a simple recipe with {f}.",
                f"Is it healthy to eat {f}?",
                f"What goes well with {f}?",
                f"Tell me about {f}.",
                f"What can I cook with {f} and {r.choice(FOODS)}?",
                f"Where does {f} come from?",
            ]
        )
    return "why", r.choice(
        [
            "Why do {} need water?",
            "Where do {} live?",
            "What do {} eat?",
            "How do {} grow?",
            "How do {} sleep?",
            "Why do people like {}?",
            "Tell me a fun fact about {}.",
            "Are {} dangerous?",
            "How long do {} live?",
        ]
    ).format(r.choice(ANIMALS) + "s")


FOLLOW = [
    "Tell me more.",
    "Can you give an example?",
    "Why is that?",
    "Can you say that in simpler words?",
    "Make it shorter.",
    "What should I do next?",
    "Thank you! Anything else?",
    "Can you explain it to a child?",
    "What is the most important part?",
    "Interesting. What else?",
    "Is that always true?",
    "How do you know?",
    "What happened next?",
    "Can you give me one more tip?",
    "Could you summarize that?",
    "I did not understand. Can you try again?",
    "Who else should know about this?",
    "What would you do?",
]


def make(n, seed):
    r = random.Random(seed)
    out, seen = [], set()
    while len(out) < n:
        if r.random() < 0.22:
            k, q = "story", story(r)
        else:
            k, q = ask(r)
        q = q[0].upper() + q[1:] if r.random() < 0.9 else q
        out.append((k, q))
    return out


if __name__ == "__main__":
    import collections

    p = make(20000, 1)
    print(collections.Counter(k for k, _ in p), len(set(q for _, q in p)))
    for x in p[:25]:
        print(x)
