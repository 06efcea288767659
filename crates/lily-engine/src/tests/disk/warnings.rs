//! What a thread says in warnings.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Clone, Default)]
pub(super) struct Warnings(Arc<Mutex<String>>);

impl Warnings {
    /// Warnings of this thread in `work` are kept.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        tracing::subscriber::with_default(self.clone(), work)
    }

    /// One a line, since the last call.
    pub(super) fn take(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            writeln!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Message(&mut self.0.lock().unwrap()));
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
