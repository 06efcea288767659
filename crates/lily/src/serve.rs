//! `lily serve`: the HTTP API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use lily_chat::Chat;
use lily_checkpoint::{Checkpoint, GenerationDefaults};
use lily_engine::{Engine, EngineOptions, Script};
use lily_model::Footprint;
use lily_server::{Access, App, ModelNames, SamplingDefaults};
use tokio::net::TcpListener;

use crate::cli::{ServeArgs, Switch};
use crate::interrupt::INTERRUPTED;
use crate::keep::Keep;
use crate::load::{self, Limits};
use crate::plan::{Plan, Wish};
use crate::session;

/// Answer requests until Ctrl-C or SIGTERM.
pub fn serve(args: ServeArgs) -> Result<()> {
    let access = access(&args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.context("cannot start the runtime")?.block_on(async {
        // Before the model is loaded, so that a port in use is known at once.
        let address = SocketAddr::new(args.host, args.port);
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| {
            format!("cannot listen on {address}; is another lily running? --port chooses another port")
        })?;
        let address = listener.local_addr()?;
        let mut app = app(&args)?;
        app.access = access;
        announce(&app, address);
        lily_server::serve(listener, app, stop_signal()).await;
        Ok(())
    })
}

/// Nobody but this machine may ask without a key.
fn access(args: &ServeArgs) -> Result<Access> {
    let access = Access::new(&args.api_key, args.allow_host.clone(), args.cors_origin.clone())
        .context("--api-key (LILY_API_KEY), --allow-host or --cors-origin")?;
    if !args.host.is_loopback() && !access.has_keys() {
        bail!(
            "{} lets other machines in, so a key is needed: set LILY_API_KEY or give --api-key; or leave out --host",
            args.host
        );
    }
    Ok(access)
}

fn app(args: &ServeArgs) -> Result<App> {
    let keep = Keep::of(&args.prefix)?;
    if args.script.is_some() {
        return scripted(args, &keep);
    }
    let checkpoint = load::checkpoint(args.model.model.as_deref())?;
    let chat = load::chat(&checkpoint)?;
    let limits = Limits { context: &args.context, cache: keep.cache, parallel: args.parallel.into() };
    let (engine, plan) = session::start_engine(&checkpoint, &chat, &args.model, &limits, args.max_queue, keep)?;
    eprint!("memory\n{plan}");
    Ok(finish(args, &checkpoint, engine, chat, checkpoint.name()))
}

/// The written-down answers of `--script` in place of a model; tokenizer and template are the demo's.
fn scripted(args: &ServeArgs, keep: &Keep) -> Result<App> {
    let path = args.script.as_ref().context("no script was given")?;
    if args.prefix.cache_dir.is_some() {
        bail!("--cache-dir needs a model; --script has no states to keep");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let script = Script::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
    let checkpoint = load::demo()?;
    let chat = load::chat(&checkpoint)?;
    // Nothing is kept unless it is asked for, so that `prefill_ms` is spent on every prompt.
    let cache = Some(keep.cache.unwrap_or(0));
    let wish = Wish {
        program: 0,
        footprint: &|_| Footprint::default(),
        most: checkpoint.shape().max_context,
        parallel: args.parallel.into(),
        context: args.context.ctx.unwrap_or_default(),
        cache,
        limit: None,
    };
    let Plan { context, cache, .. } = wish.plan()?;
    let eos = checkpoint.generation().eos[0];
    let (model, tokenizer) =
        script.model(&chat.tokenizer, eos, context).with_context(|| format!("cannot use {}", path.display()))?;
    let chat = Chat { tokenizer: tokenizer.clone(), ..chat };
    let prefix = keep.prefix(cache);
    let options = EngineOptions {
        tokenizer,
        context,
        max_queue: args.max_queue,
        prefix,
        parallel: args.parallel.into(),
        memory: None,
        disk: None,
    };
    let engine = Engine::start(Box::new(model), options).context("cannot start the engine's thread")?;
    eprintln!("Answering with the script {} and the demo's tokenizer; no model runs.", path.display());
    Ok(finish(args, &checkpoint, engine, chat, "lily-script".into()))
}

fn finish(args: &ServeArgs, checkpoint: &Checkpoint, engine: Engine, chat: Chat, id: String) -> App {
    let generation = checkpoint.generation();
    let mut app =
        App::new(engine, chat, ModelNames { aliases: aliases(args, checkpoint, &id), id }, generation.eos.clone());
    app.defaults = defaults(generation);
    app.strict = args.strict;
    app.reattach_reasoning(args.reattach_reasoning == Switch::On);
    app.strip_agent_header = args.strip_agent_header.clone();
    app
}

/// What was typed, and the folder's own name, also of a repository in a cache.
fn aliases(args: &ServeArgs, checkpoint: &Checkpoint, id: &str) -> Vec<String> {
    let folder = checkpoint.path().and_then(|path| path.file_name()).map(|name| name.to_string_lossy().into_owned());
    let short = id.rsplit_once('/').map(|(_, name)| name.to_owned());
    let mut aliases = args.alias.clone();
    for name in [short, folder, args.model.model.clone()].into_iter().flatten() {
        if name != id && !aliases.contains(&name) {
            aliases.push(name);
        }
    }
    aliases
}

fn defaults(generation: &GenerationDefaults) -> SamplingDefaults {
    SamplingDefaults {
        temperature: if generation.do_sample { generation.temperature } else { 0.0 },
        top_k: generation.top_k,
        top_p: generation.top_p,
        min_p: generation.min_p,
        presence_penalty: generation.presence_penalty,
        repetition_penalty: generation.repetition_penalty,
    }
}

fn announce(app: &App, address: SocketAddr) {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    eprintln!("model    {}", app.names.id);
    eprintln!("device   {}", app.engine.device());
    eprintln!("context  {} tokens", app.engine.context());
    eprintln!("address  http://{address}/v1");
    if !address.ip().is_loopback() {
        eprintln!("         open to other machines, with an API key; keys and answers are not encrypted on the way");
    }
    eprintln!("\nTry it:");
    eprintln!("  curl http://{reachable}/v1/chat/completions -H 'content-type: application/json' \\");
    if app.access.has_keys() {
        eprintln!(r#"    -H "authorization: Bearer $LILY_API_KEY" \"#);
    }
    eprintln!(r#"    -d '{{"messages": [{{"role": "user", "content": "Hello!"}}]}}'"#);
    eprintln!("\nCtrl-C stops the server.");
}

/// Done at the first Ctrl-C or SIGTERM; the second one ends the program at once.
async fn stop_signal() {
    signal().await;
    eprintln!("Stopping; running answers may finish. Again ends at once.");
    tokio::spawn(async {
        signal().await;
        std::process::exit(i32::from(INTERRUPTED));
    });
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn signal() {
    let _ = tokio::signal::ctrl_c().await;
}
