//! Requests that take turns on the CPU with the demo checkpoint: each gets the text that it gets alone.

use lily_chat::{OutputEvent, OutputOptions, Tokenizer};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Bf16, Fast, Local};
use lily_engine::{Adjust, Answer, Engine, EngineOptions, Event, PrefixOptions, Request, SamplingParams};

fn engine(parallel: usize) -> Engine {
    let demo = format!("{}/../../demo/4bit", env!("CARGO_MANIFEST_DIR"));
    let checkpoint = Checkpoint::open(demo.as_ref()).unwrap();
    let read = |name: &str| std::fs::read(format!("{demo}/{name}")).unwrap();
    let tokenizer = Tokenizer::from_json(&read("tokenizer.json"), Some(&read("tokenizer_config.json"))).unwrap();
    let model = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 2));
    let prefix = PrefixOptions { bytes: 64 << 20, exact: false };
    let options = EngineOptions { tokenizer, context: 4096, max_queue: 8, prefix, parallel, memory: None, disk: None };
    Engine::start(Box::new(model), options).unwrap()
}

fn request(n: u32, len: u32, temperature: f32) -> Request {
    Request {
        prompt: (0..len).map(|i| 300 + (i * 7 + n) % 900).collect(),
        boundaries: Vec::new(),
        sampling: SamplingParams { temperature, seed: Some(n.into()), ..SamplingParams::GREEDY },
        adjust: Adjust::default(),
        max_tokens: Some(12 + n as usize),
        output: OutputOptions::default(),
        progress: false,
    }
}

/// All text, and whether the answer is whole.
fn text(answer: &mut Answer) -> String {
    let mut all = String::new();
    loop {
        match answer.next_blocking().unwrap() {
            Event::Output(OutputEvent::Content(text)) => all.push_str(&text),
            Event::Finished(finished) => {
                assert!(finished.usage.completion_tokens >= 12);
                return all;
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
}

#[test]
fn each_request_gets_the_text_that_it_gets_alone() {
    // A prompt longer than a chunk of the CPU and shorter ones, greedy and sampled.
    let requests = || [(0, 530, 0.0), (1, 70, 1.0), (2, 5, 0.0)].map(|(n, len, t)| request(n, len, t));
    let alone = engine(1);
    let expected = requests().map(|r| text(&mut alone.submit(r).unwrap()));
    assert!(expected.iter().all(|text| !text.is_empty()) && expected[0] != expected[2]);
    let together = engine(3);
    let got = requests().map(|r| together.submit(r).unwrap()).map(|mut answer| text(&mut answer));
    assert_eq!(got, expected);
}
