"""Small story, poem and message grammars written for this project: every part has several wordings."""

import re
from lists import *


def an(w):
    return ("an " if w[0].lower() in "aeiou" else "a ") + w


def X(r, text, **k):
    """expand $slots, then nested {a|b|c} choices"""
    for key in sorted(k, key=len, reverse=True):
        text = text.replace("$" + key, k[key])
    pat = re.compile(r"\{([^{}]*)\}")
    while True:
        m = pat.search(text)
        if not m:
            break
        text = text[: m.start()] + r.choice(m.group(1).split("|")) + text[m.end() :]
    text = re.sub(r"\ba ([aeiouAEIOU])", r"an \1", text)
    text = re.sub(r" +", " ", text).replace(" .", ".").replace(" ,", ",")
    return re.sub(r"(^|[.!?] |\n)([a-z])", lambda m: m.group(1) + m.group(2).upper(), text).strip()


OPEN = "{Once upon a time|One day|Long ago|One morning|One {sunny|rainy|cold|warm|windy} {day|morning|afternoon}}"
END = [
    "{From that day on|After that|Ever since}, $N {never forgot|always remembered} {that day|what happened}.",
    "$N {went home with a smile|fell asleep with a happy heart|smiled all the way home|felt very proud}.",
    "{That night|That evening}, $N {slept well|looked at the stars and smiled|told the story to everyone at home}.",
    "And they {all lived happily|were friends from then on|stayed friends for many years}.",
]
HELP = '{"Can I help you?" asked the $b.|"What is wrong?" asked the $b.|"Do not worry," said the $b. "I will help you."|The $b {saw|heard} $N and {came closer|came to help}.}'

PLOTS = {
    "lost": [
        "$OPEN, $WHO lost $P $o. $S had left it {near|at} the $l, but {now it was gone|it was not there anymore}.",
        "$N {looked under every bush and behind every door|looked everywhere|searched high and low}, but could not find it. $N {felt sad|began to cry|sat down and sighed}.",
        HELP
        + " $N told the $b about the $o. {Together they went|So they walked} {back to the $l|to the $l} and {looked again|searched slowly}.",
        '{At last|After a while|Soon}, the $b {saw something shine|found something} {under a leaf|behind a stone|in the grass|next to a small box}. It was the $o! "Thank you!" said $N. "{You are a true friend|I could not have found it without you}."',
    ],
    "learn": [
        "$OPEN, $WHO wanted to learn {how to swim|how to sing|how to dance|how to climb|how to draw|how to bake bread|how to play the drum}. {Everyone else made it look easy|It looked so easy}.",
        "The first time, $N {fell down|made a big mess|got everything wrong}. {Some of the others laughed|The others giggled}. $N {wanted to give up|felt very small}.",
        'But a {wise|kind|patient} old $b {sat down beside $O|came over} and said, "{Nobody is good at the start|Every expert was once a beginner|Small steps take you far}. {Try a little every day|Practice a bit each day}."',
        "So $N practiced {every morning|day after day} {at|near} the $l. {Slowly|Little by little}, it became easier. {One day|At last}, $N did it! {Everyone clapped|The whole $l cheered}. $N {had learned that|knew now that} {practice makes things easier|it is good to keep trying}.",
    ],
    "share": [
        "$OPEN, $WHO was {walking|on the way} to the $l with a {basket|bag} of $f. $N was {very hungry|looking forward to lunch}.",
        '{On the way|By the road|Near the $l}, $N met {an old|a thin|a tired} $b. "{I have not eaten all day|I am so hungry}," said the $b {quietly|softly}.',
        '$N {thought for a moment|looked at the food}. {There was not much|It was only a little}, but $N said, "{Let us share|Please take half|Sit down and eat with me}." They {ate together and talked|shared the $f and laughed}.',
        '{Some days later|The next week}, $N got lost {in the dark|in the rain}. {Suddenly|Then} the $b came and {showed $O the way home|led $O home}. "{You were kind to me|You shared with me}," said the $b. "{Now I can help you|Kindness always comes back}."',
    ],
    "honest": [
        "$OPEN, $WHO was playing {in|near} the $l. {By accident|Without meaning to}, $N broke the $o that belonged to the $b.",
        '$N {was afraid|felt scared}. "{Maybe nobody will notice|I could just hide it}," $N thought. But {the secret felt heavy|$P heart felt heavy} all {day|night}.',
        '{In the end|The next morning}, $N went to the $b and told the truth. "{I broke your $o, and I am sorry|I am sorry. I broke your $o}," $N said {in a small voice|quietly}.',
        'The $b was {quiet for a moment|surprised}. Then the $b smiled. "{Thank you for telling me|It takes courage to tell the truth}. {We can fix it together|Let us fix it together}." {And they did|So they fixed it}. $N felt {light and happy again|much better}.',
    ],
    "storm": [
        "$OPEN, $WHO was {at home|alone} {near|by} the $l when dark clouds {filled the sky|came over the hills}. {Soon|Then} it began to {rain hard|thunder}.",
        "The wind {howled|was loud} and the windows {shook|rattled}. $N {hid under a blanket|was afraid}. {Then|Suddenly} there was a knock at the door.",
        'It was a {wet|cold} little $b. "{May I come in?|Please let me in}" it {asked|said}. $N opened the door, {made some warm tea|lit a lamp}, and {they sat close together|they told each other stories}.',
        "{With a friend near|Now that they were two}, the storm did not seem so {bad|scary}. In the morning the sun {came out|was shining}, and {a rainbow stood over the $l|the whole $l smelled fresh and new}.",
    ],
    "new": [
        "$OPEN, $WHO {moved to a new home|came to live} near the $l. $N did not know anyone there and felt {lonely|shy}.",
        "{For many days|At first}, $N {watched the others play|sat alone and watched}. $S {wanted to say hello|wanted to join}, but the words did not come out.",
        'Then a {friendly|cheerful} $b {came over|walked up} and said, "{Hello! Do you want to play with us?|We need one more player. Will you join us?}" $N {nodded|smiled for the first time}.',
        'They {played until the sun went down|played with the $o all afternoon}. "{See you tomorrow!|Come back tomorrow!}" said the $b. {Walking home|On the way home}, $N thought, "{One kind word can change a whole day|It is easier to be brave with a friend}."',
    ],
    "map": [
        '$OPEN, $WHO found an old map inside a $o. {It showed a path|A red line led} to the $l. "{There must be treasure!|Maybe there is gold!}" said $N.',
        "$N {asked $P friend, the $b, to come along|told a $b about it, and they went together}. They {crossed a river and climbed a hill|walked for a whole day}. {It was hard, but they did not stop|They were tired, but they went on}.",
        'At the end of the path there was a small box. {With shaking hands|Slowly}, $N opened it. Inside there was no gold. There was {only a bag of seeds|only a letter} {and a note|with a few words}: "{The best treasure is a friend who walks with you|What you plant together will grow}."',
        "$N looked at the $b, and they {both laughed|began to laugh}. {They planted the seeds|They put the note on the wall} and {never felt poor again|were glad they had made the trip}.",
    ],
    "small": [
        '$OPEN, there was $WHO2 who {was the smallest in the $l|was smaller than all the others}. "{You are too small to help}," the others always said.',
        "{One day|Then one evening}, the $b {dropped the only key into a deep hole|got stuck behind a heavy door}. {Everyone tried to help|The big ones tried and tried}, but {nobody could reach it|no one was able to get in}.",
        '"{Let me try|I can do it}," said $N. {The others shook their heads|Some of them laughed}. But $N {slipped through a tiny gap|crawled inside} and {came back with the key|opened it from the other side}.',
        '{Everyone cheered|All of them cheered}. "{We were wrong|I am sorry}," said the $b. "{Being small can be a great strength|You saved the day}." $N {stood very tall that day|smiled proudly}.',
    ],
    "gift": [
        "$OPEN, $WHO wanted to give a present to the $b, {because it was the $b's birthday|who was turning another year older}. But $N had no money.",
        '$N {thought and thought|walked around the $l and thought}. {Then an idea came|At last there was an idea}: "{I will make something myself|I can make it with my own hands}!"',
        "{All day long|For three days}, $N worked on a $o. {It was a little crooked|It was not perfect}, but it was {made with love|full of color}.",
        'When the $b opened it, {tears of joy came|there was a big smile}. "{This is the best gift I ever got|Nobody ever made something just for me}," said the $b. They {ate $f together|had $f and sang songs} until late.',
    ],
    "seed": [
        '$OPEN, $WHO planted a tiny seed {near|behind} the $l. "{Grow quickly!|Please grow!}" said $N and {gave it water|watered it}.',
        'The next day, nothing had happened. The day after that, still nothing. "{It does not work,|This seed is broken,}" said $N to the $b.',
        '"{Be patient|Good things take time}," said the $b. "{Give it water and sun, and wait|Under the ground it is already working}." So $N {waited and took care of it|came every day with a little water}.',
        "{Many days later|When spring came}, a small green leaf {came out of the ground|looked up at the sun}. {In summer it was a tall flower|It grew and grew}. $N {was so happy|danced around it}. {Now $N knew what patience means|Waiting had been worth it}.",
    ],
    "race": [
        '$OPEN, $WHO and a fast $b {decided to have a race|talked about who was faster}. "{I will win for sure|Nobody is faster than me}," said the $b. The race went from the $l to {the old tree|the river}.',
        'The $b ran {like the wind|very fast} and was soon far ahead. "{I have so much time|I can rest a little}," the $b thought and {lay down in the grass|stopped to eat some $f}.',
        "$N {was slower, but did not stop|kept going, step by step}. {One step and then another|Slow and steady}, $N {passed the sleeping $b|went past the $b}.",
        'When the $b {woke up|looked up}, it was too late. $N was already {there|at the end}. "{How did you do that?|You won!}" {asked|said} the $b. "{I just kept going}," said $N {with a smile|and laughed}.',
    ],
    "night": [
        "$OPEN, $WHO could not sleep. {The moon was bright|The room was quiet}, and $N {looked out of the window|listened to the night}.",
        "Outside, near the $l, there was a small light. $N {put on a coat|took a lantern} and went to see. It was a $b {with a broken $o|who had lost the way}.",
        '"{I cannot get home in the dark|The night is so big}," said the $b. "{Come, I know the way|I have a light}," said $N. They walked {hand in hand|side by side} {under the stars|through the quiet night}.',
        "When the $b was {safe at home|home again}, $N {walked back and went to bed|yawned and went back to bed}. {Sleep came at once|This time it was easy to sleep}.",
    ],
}


def story(r, name=None, animal=None, place=None, obj=None, other=None, adj=None, child=None, plot=None, food=None):
    n = name or r.choice(NAMES)
    if child is None:
        child = animal is None and r.random() < 0.4
    a = animal or r.choice(ANIMALS)
    adj = adj or r.choice(ADJ)
    b = other or r.choice([x for x in ANIMALS if x != a] if r.random() < 0.7 else JOBS)
    he = r.random() < 0.5
    kind = ("child" if r.random() < 0.5 else ("boy" if he else "girl")) if child else a
    who = r.choice([f"a {adj} {kind} named {n}", f"a {adj} {kind} called {n}"])
    k = dict(
        OPEN=OPEN,
        WHO2=who,
        WHO=who,
        N=n,
        b=b,
        l=place or r.choice(PLACES),
        o=obj or r.choice(OBJECTS),
        f=food or r.choice(FOODS),
        P="his" if he else "her",
        S="he" if he else "she",
        O="him" if he else "her",
    )
    p = PLOTS[plot or r.choice(list(PLOTS))]
    parts = list(p)
    if r.random() < 0.6:
        parts.append(r.choice(END))
    if r.random() < 0.5:
        return X(r, " ".join(parts), **k)
    return "\n\n".join(X(r, " ".join(c), **k) for c in (parts[:2], parts[2:]))


ASK_STORY = [
    "{Write|Tell me|Please write|Can you tell me|I want|Make up} a {short |little |}story about $x{.||, please.}",
    "{Tell me|Write} a {bedtime |kind |nice |simple |}story {with|about} $x{.|}",
    "Story about $x, please.",
    "tell me a story about $x",
]


def story_qa(r):
    """a request and a story that keeps to it"""
    n, a, pl, o, adj = r.choice(NAMES), r.choice(ANIMALS), r.choice(PLACES), r.choice(OBJECTS), r.choice(ADJ)
    b = r.choice([x for x in ANIMALS if x != a] + JOBS)
    k = r.randrange(9)
    if k == 0:
        x, s = an(a), story(r, animal=a, child=False)
    elif k == 1:
        x, s = f"a {adj} {a}", story(r, animal=a, adj=adj, child=False)
    elif k == 2:
        x, s = f"a {adj} {a} named {n}", story(r, n, a, adj=adj, child=False)
    elif k == 3:
        x, s = f"a child named {n} and {an(b)}", story(r, n, child=True, other=b)
    elif k == 4:
        x, s = f"{an(a)} and {an(b)}", story(r, animal=a, other=b, child=False)
    elif k == 5:
        x, s = f"{n}, a {adj} {a}, at the {pl}", story(r, n, a, pl, adj=adj, child=False)
    elif k == 6:
        x, s = f"{n} and {an(o)}", story(r, n, obj=o, plot=r.choice(["lost", "honest", "map", "gift"]))
    elif k == 7:
        x, s = f"{an(a)} near the {pl}", story(r, animal=a, place=pl, child=False)
    else:
        q = r.choice(
            [
                "Tell me a story.",
                "Write a short story.",
                "Can you tell me a story?",
                "I would like to hear a story.",
                "Tell me a bedtime story.",
                "tell me a story",
                "Please tell me a short story.",
            ]
        )
        return q, story(r), "any topic"
    return X(r, r.choice(ASK_STORY), x=x), s, x


COUPLETS = """I saw $x {one|on a} sunny day,|It made me laugh and want to play.
The morning light is soft and clear,|And $x is very near.
I think of $x every night,|When all the stars are shining bright.
The wind goes by, the clouds are slow,|And $x has somewhere to go.
Oh, $x, you make me smile,|Please stay with me a little while.
The world is big, the world is wide,|With $x here by my side.
When rain is falling on the street,|The thought of $x is warm and sweet.
In spring the garden starts to grow,|And $x will be glad to know.
The river sings a quiet song,|And $x hums it all day long.
The sun goes down, the sky turns red,|And $x is going off to bed.
I wrote this poem, line by line,|For $x, a friend of mine.
In winter, when the snow is deep,|I dream of $x in my sleep.
So take my hand and come with me,|There is so much for us to see.
The moon is round, the night is still,|There is a light upon the hill.
A little hope, a little song,|Will keep us happy all day long.
And when the day has said goodbye,|We watch the stars up in the sky.
So soft and slow the evening falls,|And paints its colors on the walls.
The birds are singing in the tree,|They sing for you, they sing for me.
Now close your eyes and count to ten,|Tomorrow we will play again.
With every step along the way,|I learn a little more each day.""".split("\n")


def poem_qa(r):
    x = r.choice(
        [
            an(r.choice(ANIMALS)),
            "the " + r.choice(ANIMALS),
            "the " + r.choice(PLACES),
            r.choice(FEELINGS),
            "the " + r.choice(OBJECTS),
            r.choice(WEATHER),
            r.choice(FOODS),
        ]
    )
    n = r.choice([2, 2, 2, 3])
    xs = [c for c in COUPLETS if "$x" in c]
    ys = [c for c in COUPLETS if "$x" not in c]
    cs = r.sample(xs, n - 1) + r.sample(ys, 1) if r.random() < 0.7 else r.sample(xs, n)
    text = "\n".join(X(r, "\n".join(c.rsplit("|", 1)), x=x) for c in cs)
    return X(r, "{Write|Please write|Make up|Can you write} a {short |little |}poem about $x{.|}", x=x), text, x
