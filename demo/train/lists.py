"""Word lists written for this project."""


def _s(x):
    return [w.strip() for w in x.replace("\n", " ").split(",") if w.strip()]


ANIMALS = _s("""dog, cat, horse, cow, sheep, goat, pig, hen, duck, goose, rabbit, mouse, hamster, fox, wolf, bear, deer, moose, squirrel, hedgehog,
badger, otter, beaver, owl, eagle, hawk, robin, sparrow, crow, parrot, penguin, swan, turkey, peacock, frog, toad, turtle, lizard, snake, crocodile,
whale, dolphin, shark, seal, octopus, crab, lobster, starfish, jellyfish, salmon, goldfish, bee, ant, butterfly, spider, snail, worm, beetle, ladybug,
dragonfly, elephant, lion, tiger, leopard, giraffe, zebra, hippo, rhino, monkey, gorilla, kangaroo, koala, panda, camel, donkey, bat, mole, raccoon, skunk, pony, puppy, kitten, lamb""")
PLACES = _s("""forest, beach, mountain, village, castle, farm, garden, library, school, market, harbor, island, desert, river, lake, cave, meadow, bakery,
museum, park, city, kitchen, attic, bridge, tower, lighthouse, train station, hospital, playground, zoo, theater, workshop, barn, valley, jungle, swamp, hill, street, bus stop, bookshop, orchard, pond, tree house, old mill, campsite, airport, cellar, fire station, post office, space station""")
OBJECTS = _s("""key, map, lamp, bicycle, boat, kite, drum, book, ring, coin, clock, mirror, umbrella, box, letter, hat, scarf, shoe, ball, balloon, candle, bell,
bottle, basket, blanket, brush, button, camera, chair, cup, ladder, hammer, pencil, piano, violin, flute, guitar, puzzle, robot, rope, rocket, seed, shell, spoon, stone, table, telescope, toy train, wheel, window, feather, lantern, backpack, compass, notebook, paint box, teapot, pillow, sled, whistle""")
FOODS = _s("""bread, soup, apple pie, cheese, pancakes, rice, pasta, salad, honey, chocolate, ice cream, strawberries, oranges, carrots, potatoes, corn, beans, eggs,
butter, milk, tea, coffee, lemonade, cookies, cake, jam, pizza, noodles, fish, mushrooms, tomatoes, onions, garlic, grapes, bananas, peaches, cherries, nuts, yogurt, porridge, dumplings, sandwiches, popcorn, pumpkin, watermelon""")
NAMES = _s("""Mia, Tom, Lily, Ben, Sara, Max, Anna, Leo, Nora, Sam, Ella, Jack, Ruby, Finn, Rosa, Oscar, Ivy, Hugo, Clara, Theo, Zoe, Milo, Grace, Felix, Lucy, Noah, Emma, Adam, Maya, Paul,
Nina, Luke, Eva, Owen, Alice, Henry, Julia, Peter, Sofia, Daniel, Hana, Omar, Lina, Ravi, Mei, Kofi, Ines, Pablo, Yuki, Amara, Otto, Freya, Jonas, Tara, Emil, Greta, Dora, Victor, Stella, Arthur""")
ADJ = _s(
    """brave, shy, little, old, young, clever, kind, lazy, curious, gentle, funny, sleepy, hungry, lonely, happy, sad, quiet, noisy, proud, clumsy, friendly, grumpy, tiny, huge, careful, patient, cheerful, stubborn, wise, nervous"""
)
FEELINGS = _s(
    """happiness, sadness, anger, fear, courage, hope, kindness, patience, jealousy, pride, loneliness, gratitude, boredom, curiosity, trust, love, friendship, surprise, worry, calm, honesty, respect, forgiveness, teamwork, confidence"""
)
SCIENCE = _s(
    """gravity, light, sound, heat, electricity, magnets, atoms, water, ice, steam, clouds, rain, snow, wind, thunder, lightning, rainbows, the sun, the moon, stars, planets, Mars, Jupiter, Saturn, comets, galaxies, black holes, the Earth, oceans, tides, waves, rivers, mountains, volcanoes, earthquakes, deserts, forests, rocks, crystals, fossils, dinosaurs, plants, seeds, flowers, leaves, roots, photosynthesis, trees, insects, birds, mammals, reptiles, fish, bacteria, viruses, cells, bones, muscles, the heart, the brain, lungs, blood, skin, eyes, ears, teeth, sleep, dreams, food chains, recycling, energy, solar power, wind power, batteries, engines, bridges, airplanes, rockets, satellites, telescopes, microscopes, computers, the internet, robots, numbers, fractions, geometry, circles, triangles, maps, calendars, clocks, seasons, weather, climate, air, oxygen, carbon dioxide, salt, sugar, metal, gold, iron, glass, paper, plastic, wood, cotton, silk, soap, fire, friction, pressure, density, temperature, speed, time, evolution, genes, vaccines, vitamins, proteins, gardens, compost, soil, bees and pollination"""
)
ACTIVITIES = _s(
    """reading, writing, drawing, painting, singing, dancing, cooking, baking, swimming, running, hiking, cycling, fishing, camping, gardening, knitting, sewing, playing chess, playing football, playing the piano, learning a language, doing homework, saving money, making friends, cleaning your room, taking photos, bird watching, skating, skiing, climbing, sailing, studying for a test, getting up early, sleeping well, eating healthy food, drinking enough water, staying calm, growing tomatoes, taking care of a dog, taking care of a cat, packing a suitcase, planning a party, giving a speech, writing a letter, telling a story, learning to code, solving puzzles, washing dishes, walking in the rain, building a tree house, riding a horse, playing drums, making a budget, meditating, stretching, listening to music, watching stars, collecting stamps, volunteering, teaching a child, working in a team, starting a small business, using less plastic, saving energy, staying safe online, making soup, making tea, brushing your teeth, crossing the street, riding the bus, going to the dentist"""
)
JOBS = _s(
    """doctor, nurse, teacher, farmer, baker, cook, pilot, sailor, fisherman, carpenter, painter, writer, poet, musician, singer, dancer, actor, scientist, engineer, programmer, firefighter, police officer, judge, lawyer, librarian, gardener, mechanic, plumber, electrician, tailor, shoemaker, bus driver, train driver, astronaut, dentist, vet, photographer, journalist, architect, builder, waiter, shopkeeper, postman, miner, beekeeper, clockmaker, potter, coach, cleaner, translator"""
)
WEATHER = _s(
    "rain, snow, fog, a storm, a sunny day, a windy day, a warm summer evening, a cold winter morning, autumn leaves, spring flowers, the first snow, a rainbow, a quiet night, the full moon, the sunrise, the sunset, a hot afternoon, morning dew"
)
COUNTRIES = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Turkey": "Ankara",
    "Russia": "Moscow",
    "China": "Beijing",
    "Japan": "Tokyo",
    "India": "New Delhi",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Nigeria": "Abuja",
    "Ghana": "Accra",
    "Morocco": "Rabat",
    "Canada": "Ottawa",
    "the United States": "Washington, D.C.",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Brazil": "Brasilia",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima",
    "Colombia": "Bogota",
    "Australia": "Canberra",
    "New Zealand": "Wellington",
    "Hungary": "Budapest",
    "Romania": "Bucharest",
    "Bulgaria": "Sofia",
    "Belgium": "Brussels",
    "the Netherlands": "Amsterdam",
    "Switzerland": "Bern",
    "Iceland": "Reykjavik",
    "Ukraine": "Kyiv",
    "South Korea": "Seoul",
    "Indonesia": "Jakarta",
    "Croatia": "Zagreb",
    "Serbia": "Belgrade",
    "Scotland": "Edinburgh",
}
OPPOSITES = _s(
    "hot:cold, big:small, fast:slow, up:down, left:right, day:night, happy:sad, young:old, full:empty, light:dark, hard:soft, wet:dry, open:closed, early:late, near:far, high:low, loud:quiet, strong:weak, rich:poor, clean:dirty, thick:thin, long:short, heavy:light, good:bad, win:lose, push:pull, buy:sell, love:hate, first:last, inside:outside, above:below, black:white, sweet:sour, cheap:expensive, easy:difficult, true:false, wide:narrow, sharp:dull, brave:afraid, begin:end, remember:forget, laugh:cry, arrive:leave, give:take, deep:shallow, smooth:rough, friend:enemy, north:south, east:west, summer:winter"
)
YOUNG = _s(
    "dog:puppy, cat:kitten, cow:calf, horse:foal, sheep:lamb, goat:kid, pig:piglet, hen:chick, duck:duckling, goose:gosling, swan:cygnet, bear:cub, lion:cub, fox:cub, wolf:pup, seal:pup, deer:fawn, kangaroo:joey, frog:tadpole, owl:owlet, eagle:eaglet, elephant:calf, whale:calf, rabbit:kit"
)
SOUNDS = _s(
    "dog:barks, cat:meows, cow:moos, horse:neighs, sheep:baas, pig:oinks, duck:quacks, hen:clucks, frog:croaks, owl:hoots, lion:roars, wolf:howls, snake:hisses, bee:buzzes, mouse:squeaks, crow:caws, donkey:brays, goose:honks, turkey:gobbles, bird:sings"
)
COLORS = _s(
    "grass:green, the sky on a clear day:blue, snow:white, coal:black, a ripe banana:yellow, a ripe tomato:red, a carrot:orange, an eggplant:purple, milk:white, a lemon:yellow, a strawberry:red, chocolate:brown, an elephant:gray, a flamingo:pink, the sun in drawings:yellow, a fire truck:red, a frog:green, a pumpkin:orange, cotton:white, a leaf in summer:green"
)
PLURALS = _s(
    "child:children, mouse:mice, foot:feet, tooth:teeth, goose:geese, man:men, woman:women, leaf:leaves, knife:knives, wolf:wolves, box:boxes, fox:foxes, bus:buses, city:cities, baby:babies, cat:cats, dog:dogs, book:books, tree:trees, house:houses, sheep:sheep, fish:fish, person:people, cherry:cherries, potato:potatoes, shelf:shelves, wife:wives, glass:glasses, brush:brushes, day:days"
)
PAST = _s(
    "go:went, see:saw, eat:ate, run:ran, take:took, give:gave, write:wrote, read:read, sing:sang, swim:swam, fly:flew, drive:drove, buy:bought, think:thought, bring:brought, sleep:slept, find:found, lose:lost, win:won, make:made, come:came, know:knew, grow:grew, speak:spoke, break:broke, sit:sat, stand:stood, feel:felt, keep:kept, teach:taught, walk:walked, play:played, jump:jumped, help:helped, open:opened, cook:cooked"
)
RHYMES = _s(
    "cat:hat, dog:log, sun:run, tree:bee, moon:spoon, star:car, house:mouse, light:night, rain:train, cake:lake, king:ring, boat:coat, bear:chair, day:play, fish:dish, snow:glow, book:hook, ball:tall, bed:red, sky:fly, bell:well, sand:hand, rose:nose, ship:trip, box:fox"
)
HABITAT = _s(
    "fish:in the water, bird:in a nest, bee:in a hive, fox:in a den, rabbit:in a burrow, bear:in a cave, horse:in a stable, cow:in a barn, spider:in a web, penguin:in cold southern lands, camel:in the desert, monkey:in the trees of the jungle, polar bear:in the Arctic, frog:near ponds, crab:by the sea, owl:in the woods, mole:under the ground, whale:in the ocean, kangaroo:in Australia, panda:in the bamboo forests of China"
)
LEGS = {
    "a dog": 4,
    "a cat": 4,
    "a bird": 2,
    "a spider": 8,
    "an ant": 6,
    "a bee": 6,
    "a snake": 0,
    "a horse": 4,
    "an octopus (arms)": 8,
    "a person": 2,
    "a hen": 2,
    "a butterfly": 6,
    "a fish": 0,
    "a cow": 4,
}
TOOLUSE = _s(
    "hammer:drive nails into wood, saw:cut wood, pen:write, umbrella:stay dry in the rain, telescope:look at the stars, microscope:see very small things, thermometer:measure temperature, clock:tell the time, map:find the way, compass:find north, spoon:eat soup, knife:cut food, broom:sweep the floor, oven:bake bread, needle:sew cloth, bucket:carry water, ladder:reach high places, key:open a lock, camera:take pictures, scale:weigh things, ruler:measure length, scissors:cut paper, lamp:give light, boat:travel on water, bicycle:ride from place to place, fridge:keep food cold, soap:wash your hands, towel:dry yourself, pillow:rest your head, calendar:keep track of days"
)
DAYS = _s("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = _s("January, February, March, April, May, June, July, August, September, October, November, December")
MDAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
NUMW = _s(
    "zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty"
)
CATEGORIES = {
    "fruits": _s("apple, banana, orange, pear, grape, cherry, peach, plum, mango, lemon, kiwi, melon"),
    "vegetables": _s("carrot, potato, onion, tomato, cabbage, spinach, pea, bean, leek, pepper, beet, pumpkin"),
    "colors": _s("red, blue, green, yellow, orange, purple, pink, brown, black, white, gray"),
    "farm animals": _s("cow, pig, sheep, goat, horse, hen, duck, goose, donkey, turkey"),
    "wild animals": _s("lion, tiger, bear, wolf, fox, deer, elephant, giraffe, zebra, monkey"),
    "sea animals": _s("whale, dolphin, shark, octopus, crab, lobster, seal, starfish, jellyfish, squid"),
    "birds": _s("owl, eagle, robin, sparrow, crow, parrot, penguin, swan, hawk, duck"),
    "insects": _s("ant, bee, butterfly, beetle, ladybug, dragonfly, fly, moth, cricket, wasp"),
    "tools": _s("hammer, saw, drill, wrench, screwdriver, pliers, shovel, rake, ladder, axe"),
    "musical instruments": _s("piano, guitar, violin, drum, flute, trumpet, harp, cello, clarinet, accordion"),
    "things in a kitchen": _s("oven, spoon, fork, knife, plate, cup, pan, kettle, bowl, fridge"),
    "things in a school": _s("desk, chair, book, pencil, ruler, board, map, bag, pen, notebook"),
    "clothes": _s("shirt, hat, coat, scarf, sock, shoe, glove, dress, sweater, jacket"),
    "planets": _s("Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune"),
    "sports": _s("football, tennis, swimming, running, cycling, skiing, rowing, hockey, boxing, golf"),
    "countries in Europe": _s("France, Germany, Italy, Spain, Poland, Norway, Sweden, Greece, Portugal, Austria"),
    "flowers": _s("rose, tulip, daisy, lily, sunflower, violet, orchid, poppy, iris, lavender"),
    "trees": _s("oak, pine, birch, maple, willow, elm, cedar, beech, ash, palm"),
    "ways to travel": _s("train, bus, car, bicycle, boat, airplane, tram, ferry, horse, on foot"),
    "body parts": _s("head, arm, leg, hand, foot, nose, ear, eye, knee, elbow"),
    "shapes": _s("circle, square, triangle, rectangle, oval, star, heart, hexagon, cube, cone"),
    "drinks": _s("water, milk, tea, coffee, juice, lemonade, cocoa, soda, broth, cider"),
    "jobs": _s("doctor, teacher, farmer, baker, pilot, cook, nurse, builder, writer, judge"),
    "metals": _s("iron, gold, silver, copper, tin, zinc, lead, aluminum, nickel, platinum"),
    "furniture": _s("table, chair, bed, sofa, desk, shelf, wardrobe, bench, stool, cupboard"),
}
