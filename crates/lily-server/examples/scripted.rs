//! The smallest server: one written-down answer to everything.
//!
//! `cargo run -p lily-server --example scripted`, then
//! `curl localhost:8080/v1/chat/completions -H 'content-type: application/json' -d '{"messages": [{"role": "user",
//! "content": "Hello!"}]}'`

use lily_chat::{Chat, Template, Tokenizer};
use lily_engine::{Engine, EngineOptions, PrefixOptions, Script};
use lily_server::{App, ModelNames, serve};
use tokio::net::TcpListener;

const SCRIPT: &str =
    r#"{"pieces": ["They", " said", " hello", ".", {"token": "</think>"}, "\n\n", "Hello", "!"], "delay_ms": 50}"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = |name: &str| std::fs::read(format!("{}/../../demo/4bit/{name}", env!("CARGO_MANIFEST_DIR")));
    let tokenizer = Tokenizer::from_json(&demo("tokenizer.json")?, Some(&demo("tokenizer_config.json")?))?;
    let template = Template::new(&String::from_utf8(demo("chat_template.jinja")?)?)?;
    let eos = tokenizer.added_id("<|im_end|>").ok_or("the tokenizer has no <|im_end|>")?;

    let context = 8192;
    let (model, tokenizer) = Script::parse(SCRIPT)?.model(&tokenizer, eos, context)?;
    let options = EngineOptions {
        tokenizer: tokenizer.clone(),
        context,
        max_queue: 8,
        prefix: PrefixOptions::default(),
        parallel: 1,
        memory: None,
        disk: None,
    };
    let engine = Engine::start(Box::new(model), options)?;
    let names = ModelNames { id: "scripted".into(), aliases: Vec::new() };
    let app = App::new(engine, Chat { tokenizer, template }, names, vec![eos]);

    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    eprintln!("http://{}/v1", listener.local_addr()?);
    serve(listener, app, std::future::pending()).await;
    Ok(())
}
