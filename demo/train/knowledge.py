"""A small book of plain facts and tips, written by hand for this project.
Each line: question forms of the topic (singular, plural or bare, joined by ';') | definition | more facts."""

import random
from stories import an, X

KB = """a dog;dogs|A dog is an animal that lives with people as a pet.|Dogs have four legs, a tail, and a good nose.|They can smell things that people cannot smell.|Many dogs guard homes, herd sheep, or help people who cannot see.|A young dog is called a puppy.|Dogs are happy when they can run and play.
a cat;cats|A cat is a small animal with soft fur that often lives with people.|Cats have sharp claws and can see well in the dark.|They like to sleep many hours each day.|Cats hunt mice and small birds.|A young cat is called a kitten.|When a cat is happy, it purrs.
a horse;horses|A horse is a large animal with four long legs and a mane.|Horses eat grass and hay.|People ride horses and let them pull carts.|A horse can run very fast.|A young horse is called a foal.
a cow;cows|A cow is a large farm animal that gives us milk.|Cows eat grass and live in herds.|From their milk we make butter, cheese, and yogurt.|A young cow is called a calf.
a sheep;sheep|A sheep is a farm animal with thick wool.|People cut the wool and make warm clothes from it.|Sheep eat grass and live in flocks.|A young sheep is called a lamb.
a pig;pigs|A pig is a clever farm animal with a flat nose.|Pigs like to roll in mud because it keeps them cool.|They eat almost everything.|A young pig is called a piglet.
a hen;hens;chickens|A hen is a farm bird that lays eggs.|Hens scratch the ground to find seeds and worms.|They sleep on a perch at night.|A young hen is called a chick.
a rabbit;rabbits|A rabbit is a small animal with long ears.|Rabbits eat grass, leaves, and carrots.|They live in holes called burrows.|A rabbit can hop fast to get away from danger.
a fox;foxes|A fox is a wild animal with red fur and a bushy tail.|Foxes hunt mice, rabbits, and birds.|They live in a den under the ground.|Foxes are active mostly at night.
a wolf;wolves|A wolf is a wild animal that looks like a big dog.|Wolves live and hunt together in a pack.|They howl to talk to each other.|Dogs come from wolves.
a bear;bears|A bear is a large, strong animal with thick fur.|Bears eat berries, fish, honey, and roots.|Many bears sleep through the winter.|A young bear is called a cub.
a deer;deer|A deer is a shy forest animal with thin legs.|Male deer grow antlers on their heads.|Deer eat leaves, grass, and bark.|A young deer is called a fawn.
a lion;lions|A lion is a big wild cat that lives in Africa.|Lions live in a group called a pride.|The male has a mane around his head.|A lion's roar can be heard from far away.
a tiger;tigers|A tiger is the largest wild cat.|It has orange fur with black stripes.|Tigers live in Asia and hunt alone.|Unlike most cats, tigers like to swim.
an elephant;elephants|An elephant is the largest animal on land.|It has a long trunk, big ears, and two tusks.|Elephants use the trunk to drink and to pick things up.|They live in families and remember things for a long time.
a giraffe;giraffes|A giraffe is the tallest animal in the world.|Its long neck helps it eat leaves from high trees.|Giraffes live in Africa.|They have brown spots on their fur.
a monkey;monkeys|A monkey is a clever animal that often lives in trees.|Monkeys have hands that can hold things.|They eat fruit, leaves, and insects.|Monkeys live in groups and play a lot.
a penguin;penguins|A penguin is a bird that cannot fly but swims very well.|Most penguins live in cold southern lands.|They eat fish.|Penguins stand close together to stay warm.
an owl;owls|An owl is a bird that hunts at night.|Owls have big eyes and hear very well.|They fly without a sound.|Owls eat mice and other small animals.
an eagle;eagles|An eagle is a large bird with strong wings.|Eagles can see small animals from far away.|They build big nests on high trees or cliffs.|Eagles eat fish and small animals.
a bee;bees|A bee is a small insect that makes honey.|Bees fly from flower to flower and collect nectar.|They carry pollen, and this helps plants make seeds.|Many bees live together in a hive with one queen.
an ant;ants|An ant is a tiny insect that lives in a large group.|Ants work together to find food and build nests.|An ant can carry things much heavier than itself.|They leave a smell on the ground to show the way.
a butterfly;butterflies|A butterfly is an insect with large, colorful wings.|It starts its life as a caterpillar.|The caterpillar makes a cocoon and comes out as a butterfly.|Butterflies drink nectar from flowers.
a spider;spiders|A spider is a small animal with eight legs.|Many spiders make webs to catch insects.|Spiders are not insects, because insects have six legs.|Most spiders do not hurt people.
a frog;frogs|A frog is a small animal that lives near water.|It starts its life as a tadpole with a tail.|Frogs catch insects with their long tongue.|They jump with strong back legs.
a snake;snakes|A snake is a long animal without legs.|Snakes smell with their tongue.|Some snakes are poisonous, but many are not.|A snake sheds its skin when it grows.
a turtle;turtles|A turtle is an animal with a hard shell on its back.|It can hide in the shell when there is danger.|Turtles move slowly on land, but some swim well.|They can live for many years.
a fish;fish|A fish is an animal that lives in water.|Fish breathe with gills.|They swim by moving their tail and fins.|Most fish lay eggs.
a whale;whales|A whale is a very large animal that lives in the ocean.|Whales are not fish, and they must come up to breathe air.|The blue whale is the largest animal that has ever lived.|Whales sing to each other under water.
a dolphin;dolphins|A dolphin is a clever animal that lives in the sea.|Dolphins breathe air and live in groups.|They talk with clicks and whistles.|They like to jump out of the water.
a shark;sharks|A shark is a large fish with many sharp teeth.|Sharks can smell things from far away in the water.|Most sharks do not attack people.|Sharks have lived on Earth for a very long time.
a bird;birds|A bird is an animal with feathers, wings, and a beak.|Most birds can fly.|Birds lay eggs and often build nests.|Many birds fly to warm lands in winter.
an insect;insects|An insect is a small animal with six legs.|Many insects have wings.|Bees, ants, and butterflies are insects.|Insects are important because they feed birds and help plants.
a camel;camels|A camel is a large animal that lives in the desert.|It has one or two humps where it stores fat.|A camel can go many days without water.|People ride camels across the sand.
a kangaroo;kangaroos|A kangaroo is an animal from Australia that jumps on two strong legs.|The mother carries her baby in a pouch.|Kangaroos eat grass.|They use the long tail for balance.
the sun;sun|The sun is a star at the center of our solar system.|It is a huge ball of hot gas.|The sun gives us light and warmth.|Plants need sunlight to grow.|Light from the sun takes about eight minutes to reach the Earth.
the moon;moon|The moon is a ball of rock that moves around the Earth.|It shines because it reflects the light of the sun.|The moon takes about one month to go around the Earth.|It pulls on the sea and makes the tides.|People first walked on the moon in 1969.
the Earth;earth|The Earth is the planet we live on.|It moves around the sun once a year.|Most of its surface is covered by water.|The Earth has air that we can breathe.|It turns once a day, and this makes day and night.
a star;stars|A star is a huge ball of hot gas that gives off light.|The sun is the star closest to us.|Other stars look small because they are very far away.|People use groups of stars to find their way.
a planet;planets|A planet is a large round body that moves around a star.|There are eight planets in our solar system.|The Earth is one of them.|Jupiter is the largest planet.|Planets do not make their own light.
Mars|Mars is the fourth planet from the sun.|It is called the red planet because its soil is full of rust.|Mars is colder and smaller than the Earth.|Robots have landed there to study the ground.
Jupiter|Jupiter is the largest planet in our solar system.|It is made mostly of gas.|Jupiter has a giant storm called the Great Red Spot.|It has many moons.
gravity|Gravity is the force that pulls things toward each other.|It keeps us on the ground.|Because of gravity, an apple falls from a tree.|The gravity of the sun keeps the planets in their paths.
light|Light is a form of energy that we can see.|It moves faster than anything else.|White light is made of many colors.|We see things because light bounces off them into our eyes.
sound|Sound is made when something moves back and forth very fast.|The movement travels through the air as waves.|Our ears catch the waves, and we hear the sound.|Sound cannot travel in empty space.
heat|Heat is energy that moves from warm things to cold things.|Fire, the sun, and rubbing your hands make heat.|Heat can melt ice and boil water.
electricity|Electricity is the flow of tiny particles called electrons.|It runs through wires and makes lamps and machines work.|Lightning is electricity too.|Electricity can be dangerous, so never touch a bare wire.
a magnet;magnets|A magnet is an object that pulls iron toward it.|Every magnet has a north pole and a south pole.|Two different poles pull together, and two equal poles push apart.|A compass needle is a small magnet.
an atom;atoms|An atom is a tiny building block of all things.|Atoms are far too small to see.|In the middle of an atom is the nucleus, and electrons move around it.|Atoms join together to make molecules.
water|Water is a clear liquid that all living things need.|It falls as rain and flows in rivers to the sea.|Water freezes to ice at 0 degrees Celsius and boils at 100 degrees.|People should drink water every day.
ice|Ice is frozen water.|It is cold and hard.|Ice floats on water because it is lighter than water.|It melts when it gets warm.
a cloud;clouds|A cloud is made of many tiny drops of water in the sky.|Warm air carries water up, and there it cools down.|When the drops become heavy, they fall as rain.|Clouds can be white or gray.
rain|Rain is water that falls from the clouds.|It fills rivers and lakes and helps plants grow.|When it is very cold, the water falls as snow.|An umbrella keeps you dry in the rain.
snow|Snow is made of tiny ice crystals that fall from the clouds.|It falls when the air is very cold.|Every snowflake has six sides.|Children like to build a snowman from it.
wind|Wind is moving air.|It blows because some air is warm and some is cold.|Wind can turn the blades of a windmill and make electricity.|A very strong wind is called a storm.
lightning|Lightning is a huge spark of electricity in the sky.|It happens in a storm.|The loud sound after it is called thunder.|You should stay inside when there is lightning.
thunder|Thunder is the loud sound that lightning makes.|The air gets hot very fast and bursts outward.|We see the lightning first, because light is faster than sound.
a rainbow;rainbows|A rainbow is an arc of colors in the sky.|It appears when the sun shines through drops of rain.|The drops split the white light into colors.|The colors are red, orange, yellow, green, blue, and violet.
a season;the seasons;seasons|A season is a part of the year with its own weather.|There are four seasons: spring, summer, autumn, and winter.|We have seasons because the Earth is tilted as it moves around the sun.|Summer is warm and winter is cold.
spring|Spring is the season after winter.|The days get longer and warmer.|Flowers bloom and birds build nests.
summer|Summer is the warmest season of the year.|The days are long and sunny.|Many people go swimming or travel in summer.
autumn|Autumn is the season between summer and winter.|Leaves turn red and yellow and fall from the trees.|Farmers bring in apples, corn, and pumpkins.
winter|Winter is the coldest season of the year.|The days are short and the nights are long.|In many places it snows.|Some animals sleep through the winter.
the ocean;ocean;the sea|The ocean is the salt water that covers most of the Earth.|Fish, whales, and many other animals live in it.|The Pacific is the largest ocean.|The deepest parts of the ocean are dark and cold.
a river;rivers|A river is water that flows across the land to a lake or the sea.|Most rivers begin in the mountains.|Rivers give water to people, animals, and fields.|Boats can travel on large rivers.
a lake;lakes|A lake is a large area of water with land all around it.|Most lakes have fresh water.|People swim, fish, and sail on lakes.
a mountain;mountains|A mountain is a very high piece of land.|The air on top is cold and thin.|Some mountains have snow all year.|Mount Everest is the tallest mountain in the world.
a volcano;volcanoes|A volcano is a mountain with an opening that goes deep into the Earth.|Hot melted rock called lava can come out of it.|When this happens, we say that the volcano erupts.|The ash of a volcano makes the soil rich.
an earthquake;earthquakes|An earthquake is a shaking of the ground.|It happens when large pieces of the Earth's crust move.|Strong earthquakes can damage houses.|During an earthquake, go under a strong table.
a desert;deserts|A desert is a dry place where it almost never rains.|Some deserts are full of sand, and others are rocky.|Days can be very hot and nights can be cold.|Cactus plants and camels live in deserts.
a forest;forests|A forest is a large area with many trees.|Foxes, deer, owls, and many insects live there.|Trees clean the air and give us wood.|It is quiet and cool in a forest.
an island;islands|An island is land with water all around it.|You can reach it by boat or by plane.|Some islands are tiny, and others are as big as a country.
a tree;trees|A tree is a tall plant with a trunk, branches, and leaves.|Trees take in water through their roots.|They give us wood, fruit, and shade.|Some trees can live for hundreds of years.
a flower;flowers|A flower is the colorful part of a plant.|Flowers make seeds so that new plants can grow.|Bees visit flowers to drink nectar.|Many flowers smell sweet.
a plant;plants|A plant is a living thing that grows in soil and makes its own food.|Plants need water, light, and air.|They take in carbon dioxide and give off oxygen.|Trees, grass, and flowers are plants.
a seed;seeds|A seed is the small part of a plant that can grow into a new plant.|It needs water and warmth to start growing.|First a root grows down, and then a stem grows up.
photosynthesis|Photosynthesis is the way plants make food from light.|The leaves take in sunlight, water, and carbon dioxide.|They make sugar and give off oxygen.|Without photosynthesis, we would have no food and no air to breathe.
a leaf;leaves|A leaf is the flat green part of a plant.|Leaves catch sunlight and make food for the plant.|In autumn, many leaves change color and fall down.
the heart;heart|The heart is a muscle that pumps blood through the body.|It beats all day and all night.|When you run, your heart beats faster.|Moving every day keeps the heart strong.
the brain;brain|The brain is the part of the body that thinks.|It is inside the head and is protected by the skull.|The brain tells the body what to do.|It needs sleep to work well.
a bone;bones|A bone is a hard part inside the body.|All the bones together are called the skeleton.|Bones hold us up and protect soft parts like the heart.|An adult has about 206 bones.
blood|Blood is the red liquid that flows through the body.|It carries oxygen and food to every part.|The heart pumps it through tubes called blood vessels.
the lungs;lungs|The lungs are two organs in the chest that we breathe with.|They take oxygen from the air and give it to the blood.|They also send out carbon dioxide.
the eye;eyes|The eye is the part of the body that we see with.|Light enters through a small hole called the pupil.|The brain turns the light into a picture.
teeth|Teeth are the hard white parts in the mouth that we chew with.|Children have 20 milk teeth.|You should brush your teeth twice a day.
sleep|Sleep is the time when the body and the brain rest.|Most adults need seven to nine hours each night.|Children need more sleep because they are growing.|When we sleep, we sometimes dream.
a dream;dreams|A dream is a story that the mind makes while we sleep.|Dreams can be funny, strange, or scary.|We forget most of our dreams in the morning.
a dinosaur;dinosaurs|A dinosaur was an animal that lived on Earth a very long time ago.|Some dinosaurs were huge, and others were as small as a hen.|They died out about 66 million years ago.|We know about them from fossils.
a fossil;fossils|A fossil is what is left of a plant or animal that lived long ago.|It is often a bone or a print in stone.|Scientists study fossils to learn about old life on Earth.
fire|Fire is hot, bright burning.|It needs air, heat, and something to burn.|Fire keeps us warm and cooks our food.|Never play with fire, because it is dangerous.
air|Air is the mix of gases all around us.|We cannot see it, but we can feel it when the wind blows.|People and animals need the oxygen in the air.
oxygen|Oxygen is a gas in the air that we need to breathe.|Plants make oxygen when they grow in the light.|Fire also needs oxygen to burn.
salt|Salt is a white mineral that makes food taste better.|We get it from sea water and from the ground.|Too much salt is not healthy.
sugar|Sugar is a sweet food that comes from plants.|It is made from sugar cane or sugar beets.|Too much sugar is bad for the teeth.
gold|Gold is a yellow metal that is soft and shiny.|It is rare, so it costs a lot of money.|People make rings and coins from it.|Gold does not rust.
iron|Iron is a strong gray metal.|People make tools, bridges, and steel from it.|Iron rusts when it gets wet.
glass|Glass is a hard and clear material made from hot sand.|We use it for windows, bottles, and cups.|Glass breaks easily.
paper|Paper is a thin material made from wood.|We write, draw, and print on it.|Old paper can be recycled to make new paper.
recycling|Recycling means making new things from old things.|Paper, glass, and metal can be recycled.|It saves energy and keeps nature clean.
energy|Energy is what makes things move, shine, or get warm.|Food gives energy to our bodies.|The sun, wind, and water can give us energy too.|Energy can change its form, but it does not get lost.
a battery;batteries|A battery stores energy and gives it out as electricity.|We use batteries in phones, lamps, and toys.|Some batteries can be charged again.
a computer;computers|A computer is a machine that follows instructions and works with data.|It can count very fast.|People use computers to write, play, draw, and learn.|The instructions for a computer are called a program.
the internet;internet|The internet is a network that connects computers all over the world.|With it, people can send messages and read pages.|You should not share secrets with strangers on the internet.
a robot;robots|A robot is a machine that can do work on its own.|Robots build cars, clean floors, and explore other planets.|A computer inside tells the robot what to do.
a program;programs;a computer program|A program is a list of instructions for a computer.|People write programs in a programming language.|When the computer runs the program, it does each step.
a language model;language models|A language model is a program that has learned to guess the next word of a text.|By guessing word after word, it can write sentences.|A large model knows a lot, and a tiny model knows only a little.
a telescope;telescopes|A telescope is a tool that makes far things look near.|People use it to look at the moon, planets, and stars.|It has lenses or mirrors inside.
a bicycle;bicycles|A bicycle is a vehicle with two wheels and no motor.|You move it by pushing the pedals with your feet.|Riding a bicycle is healthy and does not make the air dirty.|You should wear a helmet.
a train;trains|A train is a row of cars that moves on rails.|Trains carry many people and heavy things.|They stop at stations.|Some trains are faster than cars.
an airplane;airplanes|An airplane is a machine that flies in the sky.|Its wings lift it up when it moves fast.|Airplanes carry people from one country to another.|The person who flies it is the pilot.
a boat;boats|A boat is a vehicle that moves on water.|Some boats have sails, and others have a motor.|People use boats to fish, travel, and have fun.
a lighthouse;lighthouses|A lighthouse is a tall tower by the sea with a bright light on top.|The light shows ships where the coast is.|It helps them stay away from dangerous rocks.
a bridge;bridges|A bridge is a structure that goes over a river, a road, or a valley.|People, cars, and trains can cross on it.|Bridges are made of wood, stone, or steel.
a clock;clocks|A clock is a machine that shows the time.|It has hands or numbers.|There are 60 minutes in an hour and 24 hours in a day.
a map;maps|A map is a drawing of a place seen from above.|It shows roads, rivers, and towns.|Maps help people find the way.
a compass;compasses|A compass is a tool that shows where north is.|Its needle is a small magnet.|Sailors and hikers use it to find the way.
a book;books|A book is a set of pages with text or pictures.|Books can tell stories or teach us things.|You can borrow books from a library.
a library;libraries|A library is a place with many books that you can borrow.|It is a quiet place to read and study.|A librarian helps you find the right book.
a school;schools|A school is a place where children go to learn.|Teachers help them to read, write, and count.|At school you also make friends.
a hospital;hospitals|A hospital is a place where sick people get help.|Doctors and nurses work there day and night.
a museum;museums|A museum is a place that keeps old or interesting things.|People visit it to see art, bones, or machines.|You can learn a lot in a museum.
a farm;farms|A farm is a place where people grow food and keep animals.|Farmers grow wheat, corn, and vegetables.|Cows, pigs, and hens often live on a farm.
a garden;gardens|A garden is a piece of land where people grow flowers or vegetables.|Plants in a garden need water and sun.|Working in a garden is calm and healthy.
bread|Bread is a food made from flour and water.|The dough is baked in an oven.|Yeast makes the bread soft and light.|People eat bread all over the world.
milk|Milk is a white drink that comes from cows and other animals.|It is good for bones and teeth.|Butter, cheese, and yogurt are made from milk.
cheese|Cheese is a food made from milk.|There are soft and hard kinds.|It goes well with bread and fruit.
honey|Honey is a sweet food that bees make from the nectar of flowers.|Bees store it in their hive.|People put honey in tea or on bread.|Honey keeps for a very long time.
chocolate|Chocolate is a sweet food made from cocoa beans.|The beans grow on trees in warm lands.|Chocolate can be dark, brown, or white.
rice|Rice is a grain that many people eat every day.|It grows in wet fields in warm lands.|You cook it in water.
soup|Soup is a warm food made with water, vegetables, or meat.|It is easy to make and good on a cold day.|You eat soup with a spoon.
tea|Tea is a drink made with hot water and dried leaves.|People drink it in many countries.|You can add milk, lemon, or honey.
an apple;apples|An apple is a round fruit that grows on a tree.|It can be red, green, or yellow.|Apples are sweet and healthy.|People make juice and pie from them.
a banana;bananas|A banana is a long yellow fruit.|It grows in warm lands.|You peel it before you eat it.|Monkeys like bananas too.
a doctor;doctors|A doctor is a person who helps sick people get well.|Doctors look for the cause of an illness.|They study for many years.
a teacher;teachers|A teacher is a person who helps others to learn.|Teachers explain things and answer questions.|A good teacher is patient and kind.
a farmer;farmers|A farmer is a person who grows food and keeps animals.|Farmers get up early and work outside.|Without farmers we would have nothing to eat.
a baker;bakers|A baker is a person who makes bread and cakes.|Bakers start work early in the morning.|They use flour, water, and a hot oven.
a firefighter;firefighters|A firefighter is a person who puts out fires and saves people.|Firefighters drive a red truck with long hoses.|They must be brave and strong.
an astronaut;astronauts|An astronaut is a person who travels into space.|Astronauts train for years before they fly.|In space they float, because they fall freely around the Earth.
friendship|Friendship is a close bond between people who like and trust each other.|Friends share good times and help in hard times.|A good friend listens and tells the truth.
love|Love is a strong and warm feeling for someone.|We show love with kind words and with time.|Families and friends love each other.
courage|Courage means doing the right thing even when you are afraid.|A brave person feels fear but goes on.|Small steps can need courage too.
kindness|Kindness means being friendly and helpful to others.|A smile, a kind word, or a little help can make a day better.|Kindness costs nothing.
honesty|Honesty means telling the truth.|People trust someone who is honest.|It can be hard to be honest after a mistake, but it is right.
patience|Patience means waiting calmly.|Many good things take time, like a growing tree.|You can practice patience by taking slow breaths.
happiness|Happiness is a good and warm feeling.|Friends, music, and nature can make us happy.|Helping others often makes us happy too.
fear|Fear is the feeling that something bad may happen.|It can protect us from danger.|Talking about a fear makes it smaller.
anger|Anger is a strong feeling when something seems unfair.|When you are angry, it helps to breathe slowly and count to ten.|Then you can talk about it in a calm way.
time|Time is what we measure with clocks and calendars.|A day has 24 hours and a year has 365 days.|Time only moves forward.
money|Money is what people use to buy things.|It comes as coins, notes, or numbers in a bank.|It is wise to save a part of your money.
music|Music is sound that is put together in a pleasant way.|People sing or play instruments like the piano or the guitar.|Music can make us happy, calm, or sad.
art|Art is what people make to show beauty, ideas, or feelings.|Painting, music, and dance are forms of art.|Everyone can make art.
a story;stories|A story is a tale about things that happen to someone.|It has a beginning, a middle, and an end.|Stories can be true or made up.
football|Football is a game with two teams and one ball.|The players kick the ball and try to score goals.|Each team has eleven players.|It is played all over the world.
chess|Chess is a board game for two players.|Each player has sixteen pieces.|You win when the king of the other player cannot escape.|Chess teaches you to think ahead.
swimming|Swimming is moving through water with arms and legs.|It is healthy for the whole body.|You should learn it with a teacher who keeps you safe.
reading|Reading is looking at written words and understanding them.|It teaches us new things and new words.|A good book can take you to another world.
cooking|Cooking is making food ready to eat, often with heat.|You can boil, bake, or fry food.|A recipe tells you what to do.
Paris|Paris is the capital of France.|It is known for the Eiffel Tower and its museums.|The river Seine flows through the city.
London|London is the capital of England.|It is known for its red buses and the tower with the clock called Big Ben.|The river Thames flows through it.
Japan|Japan is a country in Asia made of many islands.|Its capital is Tokyo.|Japan is known for cherry trees, fast trains, and Mount Fuji.
Egypt|Egypt is a country in the north of Africa.|Its capital is Cairo.|It is known for the pyramids and the river Nile.
Rome|Rome is the capital of Italy.|It is a very old city.|Many people visit its old buildings, like the Colosseum.
Africa|Africa is a large continent with more than fifty countries.|Lions, elephants, and giraffes live there.|The Sahara, a huge desert, is in the north.
""".strip().split("\n")

TIPS = """sleeping well;to sleep better|Go to bed at the same time every day.|Keep the room dark and quiet.|Turn off screens an hour before bed.|Do not drink coffee in the evening.|Take a warm bath or read a calm book.
learning a language;to learn a language|Learn a few new words every day.|Listen to songs and simple stories.|Speak with other people, even if you make mistakes.|Read easy books.|Repeat old words each week.
making friends;to make friends|Smile and say hello.|Ask people about things they like.|Listen when they speak.|Be kind and honest.|Invite someone to do something together.
saving money;to save money|Write down what you spend.|Buy only what you need.|Put a little money aside each week.|Compare prices before you buy.|Cook at home more often.
studying for a test;to study for a test|Start a few days early.|Study in a quiet place.|Take short breaks.|Explain the topic to someone else.|Sleep well the night before.
staying calm;to stay calm|Breathe in and out slowly.|Count to ten.|Take a short walk.|Talk to a friend.|Think of a place that you like.
eating healthy food;to eat healthy food|Eat fruit and vegetables every day.|Drink water instead of sweet drinks.|Do not eat too much sugar.|Eat slowly.|Cook fresh food at home.
taking care of a dog;to take care of a dog|Give it food and fresh water every day.|Walk with it at least twice a day.|Play with it and be patient.|Brush its fur.|Visit the vet once a year.
taking care of a cat;to take care of a cat|Give it food and fresh water.|Clean its box every day.|Play with it using a string or a ball.|Let it rest in a quiet place.|Visit the vet once a year.
cleaning your room;to clean my room|Open the window first.|Put away one thing at a time.|Start with the floor and the desk.|Throw away what you do not need.|Play music while you work.
writing a letter;to write a letter|Start with a friendly greeting.|Write short and clear sentences.|Tell something about your day.|Ask a question.|End with kind words and your name.
giving a speech;to give a speech|Know what you want to say.|Practice in front of a mirror.|Speak slowly and clearly.|Look at the people.|Take a deep breath before you begin.
growing tomatoes;to grow tomatoes|Choose a sunny place.|Water the plants every day.|Tie the stems to a stick.|Use good soil.|Pick the tomatoes when they are red.
drawing;to draw better|Draw a little every day.|Start with simple shapes.|Look closely at the thing you draw.|Do not be afraid of mistakes.|Try different pencils.
running;to start running|Start slowly.|Wear good shoes.|Drink enough water.|Warm up before you run.|Rest when something hurts.
cooking;to cook|Read the whole recipe first.|Prepare everything before you start.|Taste the food while you cook.|Be careful with hot pans.|Start with easy dishes.
reading more;to read more|Keep a book near your bed.|Read a few pages every day.|Choose books that you enjoy.|Visit the library.|Talk with friends about books.
getting up early;to get up early|Go to bed early.|Put the alarm far from the bed.|Open the curtains at once.|Drink a glass of water.|Plan something nice for the morning.
learning to code;to learn to code|Start with small programs.|Read code that others wrote.|Practice every day.|Look for your errors step by step.|Build something that you like.
learning the piano;to play the piano|Practice a little every day.|Start slowly.|Play each hand alone first.|Listen to good music.|Be patient with yourself.
saving energy;to save energy|Turn off the light when you leave a room.|Wear a sweater instead of heating more.|Use a bicycle for short trips.|Dry clothes in the air.|Unplug machines that you do not use.
using less plastic;to use less plastic|Bring your own bag to the shop.|Drink from a bottle that you can fill again.|Buy fruit without packaging.|Use a lunch box.|Repair things before you buy new ones.
staying safe online;to stay safe online|Use strong passwords.|Do not share your address with strangers.|Ask an adult when something feels strange.|Do not open unknown files.|Be kind to others online.
camping;to go camping|Check the weather first.|Take a tent, a lamp, and warm clothes.|Bring enough water.|Keep the fire small and safe.|Take your trash home with you.
packing a suitcase;to pack a suitcase|Make a list first.|Roll your clothes.|Put heavy things at the bottom.|Keep important papers in a small bag.|Leave a little free space.
being a good friend;to be a good friend|Listen to your friend.|Keep your promises.|Say sorry when you make a mistake.|Share good times and hard times.|Tell the truth in a kind way.
a rainy day;to do on a rainy day|Read a book.|Bake cookies.|Draw a picture.|Play a board game.|Watch the rain and drink tea.
being happy;to be happy|Spend time with friends.|Go outside every day.|Do something kind.|Get enough sleep.|Think of three good things in the evening.
learning to swim;to learn to swim|Take lessons with a teacher.|Stay where you can stand.|Practice breathing first.|Learn to float.|Do not swim alone.
riding a bicycle;to ride a bicycle|Wear a helmet.|Check the brakes.|Look ahead and not at your feet.|Start on a quiet road.|Use a light in the dark.
planning a party;to plan a party|Choose a day and a place.|Write a list of guests.|Prepare simple food.|Choose some music.|Ask a friend to help.
doing homework;to do my homework|Start early.|Work at a clean desk.|Begin with the hardest task.|Take a short break every half hour.|Ask for help when you are stuck.
gardening;to start a garden|Choose plants that are easy to grow.|Water them in the morning.|Pull out the weeds.|Give them enough sun.|Be patient.
making soup;to make soup|Cut the vegetables into small pieces.|Fry an onion in the pot.|Add water and the vegetables.|Cook it for about half an hour.|Add salt and herbs at the end.
making tea;to make tea|Boil fresh water.|Put the tea leaves into a pot.|Pour the hot water over them.|Wait for three minutes.|Add milk, lemon, or honey if you like.
baking bread;to bake bread|Mix flour, water, salt, and yeast.|Knead the dough for ten minutes.|Let it rest in a warm place.|Shape it into a loaf.|Bake it until the crust is brown.
making pancakes;to make pancakes|Mix flour, milk, and eggs in a bowl.|Add a little salt.|Heat some butter in a pan.|Pour in the batter and turn it once.|Eat them warm with jam or honey.
making a salad;to make a salad|Wash the leaves and vegetables.|Cut them into small pieces.|Mix oil, vinegar, and salt.|Pour it over the salad.|Mix everything and eat it fresh.
brushing your teeth;to brush my teeth|Use a soft brush and a little toothpaste.|Brush for two minutes.|Clean every side of your teeth.|Do it in the morning and in the evening.|Rinse your mouth with water.
learning chess;to get better at chess|Learn how each piece moves.|Protect your king early.|Control the middle of the board.|Think about what the other player wants.|Look at your games again.""".split(
    "\n"
)
KB = [l.split("|") for l in KB]
TIPS = [l.split("|") for l in TIPS]
ONE = [
    "What is {}?",
    "Explain {} in one sentence.",
    "what is {}",
    "Describe {} in one sentence.",
    "Tell me in one sentence what {} is.",
]
GEN = [
    "Tell me about {}.",
    "What is {}?",
    "Explain {}.",
    "What can you tell me about {}?",
    "Can you explain {} to me?",
    "Explain {} in simple words.",
    "tell me about {}",
    "Explain {} to a child.",
    "I want to learn about {}.",
    "Write a few sentences about {}.",
    "Describe {}.",
    "What do you know about {}?",
    "Write a short paragraph about {}.",
    "Please explain {}.",
    "what do you know about {}?",
    "Can you tell me something about {}?",
]
FACTS = [
    "Tell me {n} facts about {t}.",
    "Give me {n} facts about {t}.",
    "List {n} facts about {t}.",
    "What are {n} facts about {t}?",
]
NW = ["zero", "one", "two", "three", "four", "five"]


def kb_(r):
    e = r.choice(KB)
    names = e[0].split(";")
    t = r.choice(names)
    d, more = e[1], e[2:]
    pl = names[1] if len(names) > 1 else t
    k = r.random()
    if k < 0.18:
        return [("u", r.choice(ONE).format(names[0])), ("a", d, f"I explain {names[0]} in one sentence.")]
    if k < 0.33:
        n = r.randint(2, min(4, len(more))) if len(more) > 1 else 1
        xs = more[:n] if r.random() < 0.5 else sorted(r.sample(more, n), key=more.index)
        return [
            (
                "u",
                r.choice(FACTS)
                .format(n=r.choice([str(n), NW[n]]) if n > 1 else "one", t=pl)
                .replace("one facts", "one fact")
                .replace("are one fact", "is one fact"),
            ),
            ("a", "\n".join(f"{i + 1}. {x}" for i, x in enumerate(xs)), f"I need {n} facts about {pl}."),
        ]
    if k < 0.40:
        return [
            (
                "u",
                r.choice(
                    [
                        "Tell me a fun fact about {}.",
                        "Tell me something interesting about {}.",
                        "Do you know a fact about {}?",
                        "Give me one fact about {}.",
                    ]
                ).format(pl),
            ),
            ("a", r.choice(more), f"I choose one fact about {pl}."),
        ]
    n = r.randint(1, len(more))
    xs = sorted(r.sample(more, n), key=more.index)
    m = [
        ("u", r.choice(GEN).format(t)),
        (
            "a",
            " ".join([d] + xs),
            r.choice(
                [
                    f"The user asks about {t}.",
                    f"I explain {t} with simple facts.",
                    f"First I say what it is. Then I add some facts.",
                ]
            ),
        ),
    ]
    rest = [x for x in more if x not in xs]
    if rest and r.random() < 0.35:
        m += [
            (
                "u",
                r.choice(
                    [
                        "Tell me more.",
                        "What else?",
                        "Can you tell me more about it?",
                        "Interesting. What else?",
                        "Tell me another fact.",
                    ]
                ),
            ),
            ("a", " ".join(rest[: r.randint(1, 2)]), f"I add more facts about {t}."),
        ]
    elif r.random() < 0.12:
        m += [
            ("u", r.choice(["Can you say that in one sentence?", "Make it shorter.", "Say it in one sentence."])),
            ("a", d, "I give the short version."),
        ]
    return m


def tips_(r):
    e = r.choice(TIPS)
    a, b = e[0].split(";")
    xs = e[1:]
    n = r.randint(2, 5)
    if a == "a rainy day":
        q = r.choice(
            [
                "What can I do on a rainy day?",
                "Give me some ideas for a rainy day.",
                "Give me {n} ideas for a rainy day.",
            ]
        )
    else:
        q = r.choice(
            [
                "Give me {n} tips for {a}.",
                "What are {n} good tips for {a}?",
                "How do I learn {b}?" if False else "Do you have any tips for {a}?",
                "I want {b}. What should I do?",
                "Give me advice about {a}.",
                "I want {b}. Give me {n} tips.",
                "Can you give me {n} tips for {a}?",
                "List {n} tips for {a}.",
            ]
        )
    if "{n}" not in q and r.random() < 0.5:
        n = 3
    ordered = any(w in a for w in ("making", "baking"))
    ys = xs[:n] if ordered or r.random() < 0.4 else sorted(r.sample(xs, n), key=xs.index)
    if ordered:
        n = 5
        ys = xs
        q = r.choice(
            [
                "How do I {c}?",
                "Tell me how {b}.",
                "I want {b}. What should I do?",
                "Can you explain how {b}?",
                "Give me the steps {b}.",
            ]
        )
    st = r.random()
    t = (
        "\n".join(f"{i + 1}. {x}" for i, x in enumerate(ys))
        if st < 0.6
        else " ".join(ys)
        if st < 0.8
        else "\n".join("- " + x for x in ys)
    )
    if st < 0.6 and r.random() < 0.25:
        t = r.choice(["Here are some tips:", f"Here are {NW[n]} ideas:"]) + "\n\n" + t
    q = q.format(n=r.choice([str(n), NW[n]]), a=a, b=b, c=b[3:])
    m = [("u", q), ("a", t, f"I give {n} short tips for {a}.")]
    rest = [x for x in xs if x not in ys]
    if rest and r.random() < 0.3:
        m += [
            (
                "u",
                r.choice(
                    ["Can you give me one more tip?", "One more, please.", "Anything else?", "Do you have another tip?"]
                ),
            ),
            ("a", r.choice(rest), "I add one more tip."),
        ]
    return m


if __name__ == "__main__":
    r = random.Random(2)
    print(len(KB), len(TIPS), sum(len(x) - 1 for x in KB))
    for _ in range(8):
        print(kb_(r))
        print(tips_(r))
