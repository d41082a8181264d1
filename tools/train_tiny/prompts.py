"""Prompts for the text that SmolLM2-135M-Instruct writes: children's stories from drawn words, and
simple questions.  Each prompt has the user's message and the words that open the answer.
  python3 prompts.py COUNT > prompts.jsonl      # input of `deepinfer generate`, one request a line
"""

import json
import random
import sys

NAMES = (
    '''Tom Lily Max Anna Ben Mia Sam Lucy Tim Sara Jack Emma Leo Ella Finn Zoe Jake Amy Oliver Rose
Daisy Kate Billy Jane Peter Molly Noah Ruby Henry Grace Bob Sue Fred Nina Alex Ivy Sophie Ethan
Clara Hugo'''.split()
)
ANIMALS = (
    '''cat dog rabbit bear fox mouse duck bird frog horse cow pig sheep owl turtle squirrel elephant
lion tiger monkey fish bee butterfly hedgehog goat chicken kitten puppy penguin dragon whale snail
deer wolf crab'''.split()
)
THINGS = '''ball hat boat kite cake book bell box drum apple tree flower key lamp blanket balloon
bicycle toy spoon star shell stone ladder bucket coat pie cookie train truck doll map shoe
basket umbrella swing feather button ring candle crayon garden letter clock carrot nest'''.split()
PLACES = '''forest park beach garden farm school house river village kitchen hill lake meadow market
castle zoo library mountain pond playground'''.split()
MOODS = '''happy sad brave kind lonely curious shy funny clever tired proud hungry silly gentle lazy
scared grumpy friendly quiet little'''.split()
DEEDS = [
    'finds a lost {t}',
    'learns to share a {t}',
    'helps a {m} {a}',
    'makes a new friend',
    'gets lost in the {p}',
    'wants to fly',
    'bakes a cake for a {a}',
    'is afraid of the dark',
    'builds a {t}',
    'plants a seed near the {p}',
    'looks for treasure at the {p}',
    'breaks a {t} and tells the truth',
    'wins a race against a {a}',
    'cannot sleep',
    'loses a {t} and finds it again',
    'goes on a trip to the {p}',
    'meets a {m} {a}',
    'saves a {a} from the rain',
    'has a birthday party',
    'learns to swim',
    'wants a pet {a}',
    'gives a {t} to a friend',
    'visits grandma near the {p}',
    'hears a strange sound at night',
]
OPENINGS = [
    'Once upon a time, there was a {m} {a} named {n}.',
    'Once upon a time, ',
    'One day, ',
    'Once upon a time, there was',
    'Once upon a time, in a',
    'One sunny morning, {n} ',
    '',
    '',
]
STORY = [
    'Write a short story for a small child about a {m} {a} named {n} who {d}. Use simple words.',
    'Tell me a short bedtime story about {n}, a {m} {a}. Use short sentences and simple words.',
    'Write a very short story that uses the words "{t}", "{p}" and "{m}". It is for a child.',
    'Write a simple story about {n} and {o}, who go to the {p} and find a {t}.',
    'Tell a short story about {n}, who {d}. Use simple words and end happily.',
    'Write a short story in simple English. It is about a {a} that {d}.',
]
TOPICS = '''rain snow wind the-sun the-moon stars rainbows clouds water ice fire trees flowers grass
leaves apples bananas bread milk cheese honey salt sugar rice eggs soup tea chocolate cats
dogs birds fish bees ants spiders horses cows sheep elephants lions whales frogs snakes
butterflies penguins sleep dreams teeth hands eyes ears the-heart bones blood friends family
school books music dancing painting games football swimming bicycles cars trains boats
planes bridges houses windows clocks money farms cities rivers mountains oceans islands
deserts forests summer winter spring autumn the-Earth gravity light sound electricity
magnets computers telephones doctors teachers farmers bakers firefighters'''.split()
QUESTIONS = [
    'What is {x}?',
    'What are some facts about {x}?',
    'Why do people like {x}?',
    'Explain {x} to a child.',
    'Tell me something about {x}.',
    'Why is {x} important?',
    'What can we learn from {x}?',
    'Where can you find {x}?',
    'How would you describe {x}?',
    'Write two simple sentences about {x}.',
    'Give me three tips about {x}.',
    'What is the difference between {x} and {y}?',
]
CHAT = [
    'How can I be a good friend?',
    'What should I do when I am sad?',
    'How do I make {f}?',
    'What is a good name for a {a}?',
    'Can you tell me a joke about a {a}?',
    'What should I eat for breakfast?',
    'How do I take care of a {a}?',
    'What does a {a} eat?',
    'Where does a {a} live?',
    'Hello, how are you?',
    'What is your favorite color?',
    'How do I learn to {v}?',
    'Write a short poem about a {a}.',
    'Write a short poem about {x}.',
    'Write a letter from {n} to {o}.',
    'What is {i} plus {j}?',
    'Describe a {p} in two sentences.',
    'Why should I {v}?',
    'Give me a list of five {k}.',
    'What sound does a {a} make?',
    'Say something nice about {n}.',
    'Write a short dialogue between a {a} and a {b}.',
]
FOODS = 'pancakes soup bread salad tea cookies a-sandwich lemonade rice an-omelette'.split()
VERBS = 'read swim cook draw sing dance write run sleep-well share listen save-money'.split()
KINDS = 'animals colors fruits vegetables countries sports books games flowers jobs'.split()
SHORT = ' Answer in one or two short, simple sentences.'


def draw(rng):
    """(kind, user message, opening of the answer)"""
    pick = lambda words: rng.choice(words).replace('-', ' ')
    n, o = rng.sample(NAMES, 2)
    a, b = rng.sample(ANIMALS, 2)
    x, y = (t.replace('-', ' ') for t in rng.sample(TOPICS, 2))
    words = dict(
        n=n,
        o=o,
        a=a,
        b=b,
        x=x,
        y=y,
        t=pick(THINGS),
        p=pick(PLACES),
        m=pick(MOODS),
        f=pick(FOODS),
        v=pick(VERBS),
        k=pick(KINDS),
        i=rng.randint(1, 9),
        j=rng.randint(1, 9),
    )
    words['d'] = rng.choice(DEEDS).format(**words)
    kind = rng.random()
    if kind < 0.72:
        return 'story', rng.choice(STORY).format(**words), rng.choice(OPENINGS).format(**words)
    if kind < 0.88:
        return 'question', rng.choice(QUESTIONS).format(**words), ''
    return 'chat', rng.choice(CHAT).format(**words), ''


def writer_message(kind, user):
    """The message that the writing model sees; questions ask it to be short."""
    return user if kind == 'story' else user + SHORT


if __name__ == '__main__':
    generator = random.Random(1)
    for number in range(int(sys.argv[1])):
        kind, user, _ = draw(generator)
        print(
            json.dumps(
                dict(
                    id=f'{kind}-{number}',
                    max_tokens=320,
                    temperature=0.8,
                    seed=number,
                    messages=[dict(role='user', content=writer_message(kind, user))],
                )
            )
        )
