//! What is in a checkpoint, complete or not, for people.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use lily_model::{KvType, LayerKind, Shape};

use crate::plan::{Form, slots};
use crate::source::Source;
use crate::survey::{INDEX, Planned, Survey};
use crate::verify::expected;
use crate::{CheckpointError, Config, GenerationDefaults, Layout, Part};

/// What was found in a folder. `Display` writes it as a page of text.
#[derive(Debug)]
pub struct Inspection {
    /// Folder name or repository.
    pub name: String,
    /// The folder; `None` where the checkpoint is in memory.
    pub path: Option<PathBuf>,
    /// Layout, where text tensors were found.
    pub layout: Option<Layout>,
    /// config.json, where it could be read.
    pub config: Option<Config>,
    /// Stop ids and sampling defaults, where they could be read.
    pub generation: Option<GenerationDefaults>,
    /// What config.json makes of the text model, and what is there of it.
    pub parts: BTreeMap<Part, PartSize>,
    /// Matrices by bits (4, 8; 16 is BF16).
    pub precisions: BTreeMap<usize, Tally>,
    /// Tensors of the vision tower, which Lily skips.
    pub vision: Tally,
    /// Tensors of the multi-token-prediction layer, which Lily skips.
    pub mtp: Tally,
    /// Files that belong to a checkpoint, present or not.
    pub files: Vec<FileStatus>,
    /// Everything that keeps the checkpoint from being opened.
    pub problems: Vec<CheckpointError>,
}

/// Size of a part of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartSize {
    /// Parameters by config.json.
    pub parameters: u64,
    /// Tensors found.
    pub tensors: usize,
    /// Bytes of the tensors found.
    pub bytes: u64,
}

/// A count with its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tensors or matrices.
    pub count: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// File name.
    pub name: String,
    /// Its length, or `None` where it is missing.
    pub bytes: Option<u64>,
    /// What it is for.
    pub purpose: &'static str,
    /// Whether a chat needs it.
    pub needed: bool,
}

/// Look at a folder as far as possible, even where it is incomplete: nothing fails, everything wrong is listed.
pub fn inspect(dir: &Path) -> Inspection {
    let source = Source::Folder(dir.to_path_buf());
    let mut survey = Survey::of(&source);
    let problems = std::mem::take(&mut survey.problems);
    Inspection { problems, ..Inspection::new(&source, &survey) }
}

impl Inspection {
    pub(crate) fn new(source: &Source, survey: &Survey) -> Self {
        let tally = |(count, bytes)| Tally { count, bytes };
        let mut inspection = Self {
            name: source.name(),
            path: match source {
                Source::Folder(dir) => Some(dir.clone()),
                Source::Memory { .. } => None,
            },
            layout: survey.layout,
            config: survey.config.clone(),
            generation: survey.generation.clone(),
            parts: BTreeMap::new(),
            precisions: BTreeMap::new(),
            vision: tally(survey.vision),
            mtp: tally(survey.mtp),
            files: files(source, survey),
            problems: Vec::new(),
        };
        for planned in &survey.plan {
            inspection.add(planned, survey);
        }
        // Nothing to compare with, but config.json alone gives the parameters.
        if let (true, Some(config)) = (survey.plan.is_empty(), &survey.config) {
            for slot in slots(&config.shape, Layout::Mlx) {
                inspection.parts.entry(slot.part).or_default().parameters += slot.parameters();
            }
        }
        inspection
    }

    fn add(&mut self, planned: &Planned, survey: &Survey) {
        let Planned { slot, bits } = planned;
        let found = expected(slot, *bits).into_iter().filter_map(|e| survey.tensors.get(&e.name)).map(|t| t.len as u64);
        let found: Vec<u64> = found.collect();
        let bytes = found.iter().sum();
        let part = self.parts.entry(slot.part).or_default();
        part.parameters += slot.parameters();
        part.tensors += found.len();
        part.bytes += bytes;
        if slot.form == Form::Matrix && !found.is_empty() {
            self.precisions.entry(bits.unwrap_or(16)).or_default().add(bytes);
        }
    }

    /// Whether the weights can be loaded.
    pub fn loads(&self) -> bool {
        self.problems.is_empty()
    }

    /// Files that a chat needs and that are not there.
    pub fn missing(&self) -> impl Iterator<Item = &FileStatus> {
        self.files.iter().filter(|f| f.needed && f.bytes.is_none())
    }

    /// Parameters of the text model by config.json `[34,660,610,688]`.
    pub fn parameters(&self) -> u64 {
        self.parts.values().map(|p| p.parameters).sum()
    }

    /// Tensors of the text model that are there (MLX 4 bit: 1,757; HF: 693).
    pub fn tensors(&self) -> usize {
        self.parts.values().map(|p| p.tensors).sum()
    }

    /// Bytes of these tensors (MLX 4 bit: 19,508,787,456).
    pub fn bytes(&self) -> u64 {
        self.parts.values().map(|p| p.bytes).sum()
    }
}

/// Bytes of a sequence apart from its KV: recurrent state in F32, convolution state in BF16 `[64,389,120]`.
fn state_bytes(s: &Shape) -> u64 {
    s.recurrent_bytes() + (s.count(LayerKind::Linear) * (s.conv_taps - 1) * s.conv_dim() * 2) as u64
}

fn files(source: &Source, survey: &Survey) -> Vec<FileStatus> {
    const KNOWN: [(&str, &str, bool); 6] = [
        ("config.json", "dimensions", true),
        ("generation_config.json", "stop ids and sampling defaults", false),
        ("tokenizer.json", "tokenizer", true),
        ("tokenizer_config.json", "added tokens", false),
        ("chat_template.jinja", "chat template", true),
        (INDEX, "which shard holds which tensor", false),
    ];
    let status = |&(name, purpose, needed): &(&str, _, _)| FileStatus {
        name: name.into(),
        bytes: source.len(name),
        purpose,
        needed,
    };
    let shard = |(name, bytes): &(String, Option<u64>)| FileStatus {
        name: name.clone(),
        bytes: *bytes,
        purpose: "weights",
        needed: true,
    };
    KNOWN.iter().map(status).chain(survey.shards.iter().map(shard)).collect()
}

/// `19.51 GB`, `64.4 MB`, `20,480 bytes`: decimal units, as disks and downloads are counted.
fn human(bytes: u64) -> String {
    match bytes {
        1_000_000_000.. => format!("{:.2} GB", bytes as f64 / 1e9),
        1_000_000.. => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{} bytes", grouped(bytes)),
    }
}

/// Digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Part::Embedding => "embedding",
            Part::Head => "head",
            Part::LinearMixers => "linear attention",
            Part::FullMixers => "full attention",
            Part::Routers => "routers",
            Part::RoutedExperts => "routed experts",
            Part::SharedExperts => "shared experts",
            Part::Norms => "norms",
        })
    }
}

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.name)?;
        if let Some(path) = &self.path {
            line(f, "folder", path.display())?;
        }
        if let Some(layout) = self.layout {
            line(f, "layout", layout)?;
        }
        if let Some(config) = &self.config {
            self.write_model(f, &config.shape)?;
        }
        self.write_sizes(f)?;
        if let Some(g) = &self.generation {
            let ids: Vec<String> = g.eos.iter().map(u32::to_string).collect();
            line(f, "stop ids", ids.join(", "))?;
            let how = if g.do_sample { "sampled" } else { "greedy" };
            line(
                f,
                "defaults",
                format_args!(
                    "{how}, temperature {}, top_k {}, top_p {}, min_p {}",
                    g.temperature, g.top_k, g.top_p, g.min_p
                ),
            )?;
        }
        self.write_files(f)?;
        self.write_verdict(f)
    }
}

fn line(f: &mut Formatter<'_>, what: &str, value: impl Display) -> fmt::Result {
    writeln!(f, "  {what:<12} {value}")
}

impl Inspection {
    fn write_model(&self, f: &mut Formatter<'_>, s: &Shape) -> fmt::Result {
        line(f, "parameters", format_args!("{} in the text model", grouped(self.parameters())))?;
        line(
            f,
            "layers",
            format_args!(
                "{}: {} linear attention, {} full attention",
                s.layers.len(),
                s.count(LayerKind::Linear),
                s.count(LayerKind::Full)
            ),
        )?;
        line(f, "width", format_args!("{}, vocabulary {}", s.hidden, s.vocab))?;
        line(
            f,
            "attention",
            format_args!(
                "full: {} query and {} key/value heads of {} ({} rotate)",
                s.query_heads, s.kv_heads, s.head_dim, s.rotary_dim
            ),
        )?;
        line(
            f,
            "",
            format_args!(
                "linear: {} key and {} value heads of {}, convolution over {} tokens",
                s.linear_key_heads, s.linear_value_heads, s.linear_head_dim, s.conv_taps
            ),
        )?;
        line(
            f,
            "experts",
            format_args!(
                "{} of width {}, {} a token, and a shared one of width {}",
                s.experts, s.expert_width, s.experts_per_token, s.shared_width
            ),
        )?;
        line(f, "context", format_args!("up to {} tokens", grouped(s.max_context as u64)))?;
        for kv in [KvType::Bf16, KvType::Q8] {
            let bytes = s.kv_bytes_per_token(kv);
            let full = human(bytes * s.max_context as u64);
            line(f, "KV cache", format_args!("{} a token in {}, {full} in full", human(bytes), kv.name()))?;
        }
        line(f, "state", format_args!("{} a sequence, whatever its length", human(state_bytes(s))))
    }

    fn write_sizes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let total = self.bytes();
        if total == 0 {
            return Ok(());
        }
        let per_parameter = total as f64 * 8.0 / self.parameters() as f64;
        line(
            f,
            "weights",
            format_args!("{} in {} tensors, {per_parameter:.3} bits a parameter", human(total), self.tensors()),
        )?;
        for (part, size) in &self.parts {
            let share = 100.0 * size.bytes as f64 / total as f64;
            let bytes = human(size.bytes);
            writeln!(f, "    {part:<18} {bytes:>14} {share:>5.1} %  {:>15} parameters", grouped(size.parameters))?;
        }
        for (bits, tally) in &self.precisions {
            let kind = if *bits == 16 { "BF16".to_owned() } else { format!("{bits} bit") };
            line(f, &kind, format_args!("{} matrices, {}", tally.count, human(tally.bytes)))?;
        }
        for (what, tally) in [("vision tower", self.vision), ("MTP layer", self.mtp)] {
            if tally.count > 0 {
                line(f, "skipped", format_args!("{what}, {} in {} tensors", human(tally.bytes), tally.count))?;
            }
        }
        Ok(())
    }

    fn write_files(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "  files")?;
        for file in &self.files {
            let size = match (file.bytes, file.needed) {
                (Some(bytes), _) => human(bytes),
                (None, true) => "MISSING".into(),
                (None, false) => "not there".into(),
            };
            writeln!(f, "    {:<34} {size:>14}  {}", file.name, file.purpose)?;
        }
        Ok(())
    }

    fn write_verdict(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 12;
        let missing: Vec<&str> = self.missing().map(|file| file.name.as_str()).collect();
        if self.loads() && missing.is_empty() {
            return writeln!(f, "  Complete: all tensors were checked and the checkpoint can be served.");
        }
        if self.loads() {
            return writeln!(f, "  The weights are complete, but a chat also needs {}.", missing.join(" and "));
        }
        writeln!(f, "  This checkpoint cannot be loaded:")?;
        for problem in self.problems.iter().take(SHOWN) {
            writeln!(f, "    - {problem}")?;
        }
        match self.problems.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => writeln!(f, "    … and {more} more"),
        }
    }
}
