//! Compares the tensors that were found with those that the shape and the quantisation table call for.

use std::collections::HashSet;

use crate::header::Dtype;
use crate::plan::{Form, Layout, Slot, slots};
use crate::survey::{Planned, Stored, Survey};
use crate::weights::Affine;
use crate::{CheckpointError, Quantization};

/// A tensor that must be there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expected {
    pub name: String,
    /// Any of these; the first is the usual one.
    pub dtypes: &'static [Dtype],
    pub shape: Vec<usize>,
}

/// The tensors of a slot: one, or codes, scales and biases.
pub(crate) fn expected(slot: &Slot, bits: Option<usize>) -> Vec<Expected> {
    const BF16: &[Dtype] = &[Dtype::Bf16];
    let weight = |dtypes, shape| Expected { name: slot.weight.clone(), dtypes, shape };
    match (slot.form, bits) {
        // Some conversions keep A_log (and other small vectors) in F32.
        (Form::Vector, _) => vec![weight(&[Dtype::Bf16, Dtype::F32], slot.shape.clone())],
        (Form::Matrix, None) => vec![weight(BF16, slot.shape.clone())],
        (Form::Matrix, Some(bits)) => vec![
            weight(&[Dtype::U32], slot.code_shape(bits)),
            Expected { name: slot.scales(), dtypes: BF16, shape: slot.scale_shape() },
            Expected { name: slot.biases(), dtypes: BF16, shape: slot.scale_shape() },
        ],
    }
}

impl Expected {
    fn check(&self, stored: &Stored, layout: Layout) -> Result<(), String> {
        if !self.dtypes.contains(&stored.dtype) {
            let wanted: Vec<String> = self.dtypes.iter().map(Dtype::to_string).collect();
            return Err(format!("is {}, but should be {}", stored.dtype, wanted.join(" or ")));
        }
        if self.shape == stored.shape {
            return Ok(());
        }
        let note = if self.name.ends_with("conv1d.weight") {
            format!("; in the {layout} layout, which its name shows, the taps stand there")
        } else {
            String::new()
        };
        Err(format!("has the shape {:?}, but config.json makes it {:?}{note}", stored.shape, self.shape))
    }
}

impl Survey {
    /// Fill in the layout and the plan, and note everything that does not fit.
    pub(crate) fn check_plan(&mut self) {
        let Some(layout) = self.find_layout() else { return };
        self.layout = Some(layout);
        let Some(config) = self.config.clone() else { return };
        let quantization = match (layout, config.quantization) {
            (Layout::Hf, Some(_)) => {
                self.problems.push(CheckpointError::Config {
                    file: "config.json",
                    key: "quantization".into(),
                    problem: "is set, but the tensors have the names of the unquantised Hugging Face layout".into(),
                });
                None
            }
            (_, quantization) => quantization,
        };
        let absent_shard = self.shards.iter().any(|(_, len)| len.is_none());
        let mut known = HashSet::new();
        for slot in slots(&config.shape, layout) {
            let planned = self.plan_slot(slot, quantization.as_ref());
            for expected in expected(&planned.slot, planned.bits) {
                let error = match self.tensors.get(&expected.name) {
                    Some(stored) => expected.check(stored, layout).err().map(|problem| CheckpointError::Tensor {
                        tensor: expected.name.clone(),
                        file: stored.file.clone(),
                        problem,
                    }),
                    // Where a whole shard is absent, that is the news and not each of its tensors.
                    None if absent_shard => None,
                    None => Some(CheckpointError::MissingTensor { tensor: expected.name.clone() }),
                };
                self.problems.extend(error);
                known.insert(expected.name);
            }
            self.plan.push(planned);
        }
        let mut unknown: Vec<_> = self.tensors.iter().filter(|(name, _)| !known.contains(*name)).collect();
        unknown.sort_by_key(|(name, _)| name.as_str());
        self.problems.extend(
            unknown
                .into_iter()
                .map(|(name, t)| CheckpointError::UnknownTensor { tensor: name.clone(), file: t.file.clone() }),
        );
    }

    /// By the names. The shape of the convolutions, which tells whether norms hold w or 1 + w, must agree and is
    /// checked with all other shapes.
    fn find_layout(&mut self) -> Option<Layout> {
        let has = |layout: Layout| self.tensors.keys().any(|name| name.starts_with(layout.prefix()));
        match (has(Layout::Mlx), has(Layout::Hf)) {
            (true, false) => return Some(Layout::Mlx),
            (false, true) => return Some(Layout::Hf),
            _ => {}
        }
        // No tensor at all was reported already: no shard, or none that could be read.
        let (name, t) = self.tensors.iter().min_by_key(|(name, _)| name.as_str())?;
        self.problems.push(CheckpointError::Tensor {
            tensor: name.clone(),
            file: t.file.clone(),
            problem: format!(
                "is in neither layout that Lily reads: all text tensors begin with {} (MLX), or all with {} (Hugging \
                 Face)",
                Layout::Mlx.prefix(),
                Layout::Hf.prefix()
            ),
        });
        None
    }

    /// Bits by config.json, checked against the shapes: 32 · columns of the codes / (64 · columns of the scales).
    fn plan_slot(&mut self, slot: Slot, quantization: Option<&Quantization>) -> Planned {
        let bits = match (slot.form, quantization) {
            (Form::Matrix, Some(q)) => q.of(&slot.module, self.tensors.contains_key(&slot.scales())),
            _ => None,
        };
        let last = |name: &str| self.tensors.get(name).and_then(|t| t.shape.last().copied());
        if let (Some(bits), Some(words), Some(groups)) = (bits, last(&slot.weight), last(&slot.scales()))
            && Some(words) != groups.checked_mul(Affine::GROUP / 32 * bits)
        {
            self.problems.push(CheckpointError::Config {
                file: "config.json",
                key: format!("quantization.{}", slot.module),
                problem: format!(
                    "means {bits} bits, but {words} columns of codes and {groups} of scales are {:.4} bits",
                    words as f64 * 32.0 / (groups as f64 * Affine::GROUP as f64)
                ),
            });
        }
        Planned { slot, bits }
    }
}
