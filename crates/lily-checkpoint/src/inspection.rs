//! What is in a checkpoint, complete or not, for people.

use std::path::{Path, PathBuf};

use crate::source::Source;
use crate::survey::Survey;
use crate::{CheckpointError, Layout};

/// What was found in a folder.
#[derive(Debug)]
pub struct Inspection {
    /// Folder name or repository.
    pub name: String,
    /// Layout, where tensors were found.
    pub layout: Option<Layout>,
    /// Everything that keeps the checkpoint from being opened.
    pub problems: Vec<CheckpointError>,
}

/// Look at a folder as far as possible, even where it is incomplete.
pub fn inspect(dir: &Path) -> Inspection {
    let source = Source::Folder(PathBuf::from(dir));
    let mut survey = Survey::of(&source);
    let problems = std::mem::take(&mut survey.problems);
    Inspection { problems, ..Inspection::new(&source, &survey) }
}

impl Inspection {
    pub(crate) fn new(source: &Source, survey: &Survey) -> Self {
        Self { name: source.name(), layout: survey.layout, problems: Vec::new() }
    }
}
