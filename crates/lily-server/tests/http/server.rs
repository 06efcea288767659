//! A server to test, and a client that hides nothing of what comes over the wire.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lily_chat::{Chat, Template, Tokenizer};
use lily_checkpoint::Checkpoint;
use lily_cpu::{Bf16, Fast, Local};
use lily_engine::{Engine, EngineOptions, Load, PrefixOptions, Script};
use lily_model::Model;
use lily_server::{App, ModelNames};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// `<|im_end|>` and `<|endoftext|>` of the demo tokenizer.
const EOS: [u32; 2] = [8185, 8183];
pub const CONTEXT: usize = 1024;
const LIMIT: Duration = Duration::from_secs(20);

pub struct Server {
    pub addr: SocketAddr,
    pub engine: Engine,
    stop: Option<oneshot::Sender<()>>,
    pub task: JoinHandle<()>,
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/4bit");

fn demo(name: &str) -> Vec<u8> {
    let path = format!("{DEMO}/{name}");
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(&demo("tokenizer.json"), Some(&demo("tokenizer_config.json"))).unwrap()
}

impl Server {
    /// A server whose answers are `script`, with room for two waiting requests.
    pub async fn start(script: &str) -> Self {
        Self::start_with(script, 2, |_| {}).await
    }

    pub async fn start_with(script: &str, max_queue: usize, change: impl FnOnce(&mut App)) -> Self {
        Self::start_caching(script, max_queue, PrefixOptions::default(), change).await
    }

    /// A server whose engine keeps prefixes.
    pub async fn start_caching(
        script: &str,
        max_queue: usize,
        prefix: PrefixOptions,
        change: impl FnOnce(&mut App),
    ) -> Self {
        let (model, tokenizer) = Script::parse(script).unwrap().model(&tokenizer(), EOS[0], CONTEXT).unwrap();
        Self::serve(Box::new(model), tokenizer, CONTEXT, max_queue, prefix, change).await
    }

    /// A server whose answers are the demo model's, from an engine that keeps prefixes.
    pub async fn start_demo() -> Self {
        Self::start_demo_with(2).await
    }

    /// The same, with room for so many waiting requests.
    pub async fn start_demo_with(max_queue: usize) -> Self {
        let checkpoint = Checkpoint::open(DEMO.as_ref()).unwrap();
        let model = Local::new(Fast::<Bf16>::new(checkpoint.shape(), checkpoint.weights(), 1));
        let prefix = PrefixOptions { bytes: 1 << 30, ..PrefixOptions::default() };
        Self::serve(Box::new(model), tokenizer(), 4096, max_queue, prefix, |_| {}).await
    }

    async fn serve(
        model: Box<dyn Model>,
        tokenizer: Tokenizer,
        context: usize,
        max_queue: usize,
        prefix: PrefixOptions,
        change: impl FnOnce(&mut App),
    ) -> Self {
        let template = Template::new(&String::from_utf8(demo("chat_template.jinja")).unwrap()).unwrap();
        let options = EngineOptions {
            tokenizer: tokenizer.clone(),
            context,
            max_queue,
            prefix,
            parallel: 1,
            memory: None,
            disk: None,
        };
        let engine = Engine::start(model, options).unwrap();
        let names = ModelNames { id: "org/Lily-Test".into(), aliases: vec!["lily-test".into(), "folder".into()] };
        let mut app = App::new(engine.clone(), Chat { tokenizer, template }, names, EOS.to_vec());
        change(&mut app);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(lily_server::serve(listener, app, async {
            let _ = stopped.await;
        }));
        Self { addr, engine, stop: Some(stop), task }
    }

    /// Tell the server to stop.
    pub fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    pub async fn get(&self, path: &str) -> Reply {
        send(self.addr, "GET", path, &[], b"").await
    }

    pub async fn post(&self, body: &Value) -> Reply {
        self.post_raw(body.to_string().as_bytes()).await
    }

    /// The same to another path.
    pub async fn post_to(&self, path: &str, body: &Value) -> Reply {
        send(self.addr, "POST", path, JSON, body.to_string().as_bytes()).await
    }

    /// The token ids of a conversation's prompt.
    pub async fn tokens(&self, body: &Value) -> Vec<u64> {
        let reply = send(self.addr, "POST", "/tokenize", JSON, body.to_string().as_bytes()).await.json();
        let ids = reply["tokens"].as_array().unwrap_or_else(|| panic!("{reply}"));
        ids.iter().map(|id| id.as_u64().unwrap()).collect()
    }

    /// The text of a conversation's prompt.
    pub async fn prompt(&self, body: &Value) -> String {
        let body = json!({"tokens": self.tokens(body).await}).to_string();
        let reply = send(self.addr, "POST", "/detokenize", JSON, body.as_bytes()).await.json();
        reply["content"].as_str().unwrap().to_owned()
    }

    pub async fn post_raw(&self, body: &[u8]) -> Reply {
        send(self.addr, "POST", CHAT, JSON, body).await
    }

    /// The connection of a posted request, to leave it when one likes.
    pub async fn open(&self, body: &Value) -> TcpStream {
        self.open_with("", body).await
    }

    /// The same, for those who read until the server closes.
    pub async fn open_closing(&self, body: &Value) -> TcpStream {
        self.open_with("Connection: close\r\n", body).await
    }

    async fn open_with(&self, headers: &str, body: &Value) -> TcpStream {
        let mut socket = TcpStream::connect(self.addr).await.unwrap();
        let body = body.to_string();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(body.as_bytes()).await.unwrap();
        socket
    }

    /// Wait until the engine's load is as asked.
    pub async fn until(&self, what: &str, condition: impl Fn(Load) -> bool) {
        let began = Instant::now();
        while !condition(self.engine.load()) {
            assert!(began.elapsed() < LIMIT, "waited in vain for {what}: {:?}", self.engine.load());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn until_idle(&self) {
        self.until("an idle engine", |load| load == Load::default()).await;
    }

    /// The server answers still.
    pub async fn assert_alive(&self) {
        assert_eq!(self.get("/health").await.status, 200);
    }
}

pub const CHAT: &str = "/v1/chat/completions";
const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];

/// A request with thinking off, and the fields of `extra` over it.
pub fn ask(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Say something."}], "enable_thinking": false});
    for (name, value) in extra.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

/// One part of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Sse {
    Comment,
    Data(Value),
    Done,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|l| l.split_once(": "));
        lines.find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    pub fn error(&self) -> Value {
        self.json()["error"].clone()
    }

    /// All of a whole stream.
    pub fn events(&self) -> Vec<Sse> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let event = |text: &str| match text.strip_prefix("data: ") {
            Some("[DONE]") => Sse::Done,
            Some(data) => Sse::Data(serde_json::from_str(data).unwrap_or_else(|e| panic!("{e}: {data}"))),
            None => {
                assert!(text.starts_with(':'), "{text:?}");
                Sse::Comment
            }
        };
        self.body.split("\n\n").filter(|t| !t.is_empty()).map(event).collect()
    }

    /// The data of a stream of named events, which bear the name as their type; without comments.
    pub fn named(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{self:?}");
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let parts = self.body.split("\n\n").filter(|text| !text.is_empty() && !text.starts_with(':'));
        let event = |text: &str| {
            let (name, data) = text.split_once('\n').unwrap_or_else(|| panic!("{text:?}"));
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{text}");
            data
        };
        parts.map(event).collect()
    }

    /// The data of a stream, which must end in `[DONE]`.
    pub fn chunks(&self) -> Vec<Value> {
        let events = self.events();
        assert_eq!(events.last(), Some(&Sse::Done));
        assert_eq!(events.iter().filter(|e| **e == Sse::Done).count(), 1);
        events.into_iter().filter_map(|e| if let Sse::Data(v) = e { Some(v) } else { None }).collect()
    }
}

/// One request on a connection of its own.
pub async fn send(addr: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if method == "POST" && !headers.iter().any(|(n, _)| *n == "Transfer-Encoding") {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(format!("{head}\r\n").as_bytes()).await.unwrap();
    socket.write_all(body).await.unwrap();
    read_reply(&mut socket).await
}

/// Read until the server closes.
pub async fn read_reply(socket: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    tokio::time::timeout(LIMIT, socket.read_to_end(&mut bytes)).await.expect("an end of the reply").unwrap();
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap();
    let mut rest = &bytes[at + 4..];
    let status = head[9..12].parse().unwrap();
    let mut body = Vec::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        while let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
            let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).unwrap(), 16).unwrap();
            body.extend_from_slice(&rest[end + 2..end + 2 + size]);
            rest = &rest[end + 4 + size..];
        }
    } else {
        body.extend_from_slice(rest);
    }
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}
