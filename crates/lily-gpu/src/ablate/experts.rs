//! Prefill's experts without fused dequantisation, and without routing on the device.

use super::launch::Named;
use super::{Ablated, SingleLaunches};
use crate::args::AblateExpandArgs;
use crate::gpu::{Arg, Contents, GpuError, Launch};

/// Values that a threadgroup of `ablate_expand` makes.
const EXPANDED: u64 = 2048;

/// Codes, scales and biases of a grouped product's matrices.
const GATE_UP: &[[&str; 3]] = &[["gate_codes", "gate_scales", "gate_biases"], ["up_codes", "up_scales", "up_biases"]];
const DOWN: &[[&str; 3]] = &[["codes", "scales", "biases"]];

/// Memory of the ablations of experts.
pub(super) struct Experts<B> {
    /// Expanded matrices.
    expanded: [Option<B>; 2],
    sorted: Option<Sorted<B>>,
}

impl<B> Default for Experts<B> {
    fn default() -> Self {
        Self { expanded: [None, None], sorted: None }
    }
}

/// What the host wrote for the products of a layer: `order`, then `block_expert`, `block_first` and `block_end`.
struct Sorted<B> {
    buffer: B,
    offsets: [u64; 4],
    blocks: u32,
}

/// Rows by expert as `moe_map` sorts them, and the blocks that they are cut into: expert, first place, end.
pub(super) fn sort(experts: &[u32], block: u32) -> (Vec<u32>, Vec<[u32; 3]>) {
    let count = experts.iter().max().map_or(0, |&e| e as usize + 1);
    let mut rows = vec![0u32; count];
    experts.iter().for_each(|&e| rows[e as usize] += 1);
    let mut blocks = Vec::new();
    let mut place = 0;
    let mut next = Vec::with_capacity(count);
    for (expert, &rows) in rows.iter().enumerate() {
        next.push(place);
        let end = place + rows;
        let firsts = (place..end).step_by(block as usize);
        blocks.extend(firsts.map(|first| [expert as u32, first, end.min(first + block)]));
        place = end;
    }
    let mut order = vec![0; experts.len()];
    for (row, &expert) in experts.iter().enumerate() {
        order[next[expert as usize] as usize] = row as u32;
        next[expert as usize] += 1;
    }
    (order, blocks)
}

impl<G: SingleLaunches> Ablated<G> {
    /// A grouped product becomes that of the kernel that takes any weights; with `expanded`, quantised ones become BF16 after
    /// dispatches that write these.
    pub(super) fn expand_first(&mut self, launch: &Launch<'_, G::Buffer>, expanded: bool) -> Result<(), GpuError> {
        let matrices = match launch.kernel {
            name if name.starts_with("grouped_gate_up_") => GATE_UP,
            name if name.starts_with("grouped_down_") => DOWN,
            _ => return self.pass(launch),
        };
        let mut product = Named::of(launch)?;
        let bits = product.small("bits")?;
        if let Some(name) = launch.kernel.strip_suffix("_w4_mma") {
            product.rename(&format!("{name}_bf16_mma"))?;
            self.switch.state().replaced += 1;
        }
        if bits == 16 || !expanded {
            return product.send(|launch| self.pass(launch));
        }
        let mut written = Vec::with_capacity(matrices.len());
        for (i, parts) in matrices.iter().enumerate() {
            let (codes, at) = product.buffer(parts[0])?;
            let values = (self.gpu.bytes(codes) - at) * 8 / u64::from(bits);
            let out = self.expanded(i, 2 * values)?;
            let args = AblateExpandArgs { values, bits, unused: 0 }.to_bytes();
            let mut bound = Vec::with_capacity(5);
            for part in parts {
                let (buffer, at) = product.buffer(part)?;
                bound.push(Arg::Buffer(buffer, at));
            }
            bound.extend([Arg::Buffer(&out, 0), Arg::Value(&args)]);
            self.pass(&Launch {
                kernel: "ablate_expand",
                constants: &[],
                args: &bound,
                groups: [values.div_ceil(EXPANDED) as u32, 1, 1],
                threads: [256, 1, 1],
            })?;
            written.push(out);
        }
        for (parts, out) in matrices.iter().zip(&written) {
            for part in parts {
                let place = product.place(part)?;
                product.args[place] = Arg::Buffer(out, 0);
            }
        }
        product.set("bits", 16)?;
        self.switch.state().replaced += 1;
        product.send(|launch| self.pass(launch))
    }

    fn expanded(&mut self, slot: usize, bytes: u64) -> Result<G::Buffer, GpuError> {
        match &self.experts.expanded[slot] {
            Some(buffer) if self.gpu.bytes(buffer) >= bytes => Ok(buffer.clone()),
            _ => {
                let buffer = self.gpu.allocate(bytes, Contents::Weights)?;
                self.experts.expanded[slot] = Some(buffer.clone());
                Ok(buffer)
            }
        }
    }

    /// In the place of `moe_map` the command buffer ends, and the host sorts; the products read what it wrote.
    pub(super) fn route_on_the_host(&mut self, launch: &Launch<'_, G::Buffer>) -> Result<(), GpuError> {
        if ["moe_map", "moe_map_mma"].contains(&launch.kernel) {
            let map = Named::of(launch)?;
            return self.sort_on_the_host(&map);
        }
        if !(launch.kernel.starts_with("grouped_gate_up_") || launch.kernel.starts_with("grouped_down_")) {
            return self.pass(launch);
        }
        let mut product = Named::of(launch)?;
        let missing = || GpuError::launch(launch.kernel, "comes before its rows are sorted");
        let sorted = self.experts.sorted.take().ok_or_else(missing)?;
        for (name, offset) in ["order", "block_expert", "block_first", "block_end"].into_iter().zip(sorted.offsets) {
            let place = product.place(name)?;
            product.args[place] = Arg::Buffer(&sorted.buffer, offset);
        }
        product.groups[1] = sorted.blocks;
        let done = product.send(|launch| self.pass(launch));
        self.experts.sorted = Some(sorted);
        done
    }

    fn sort_on_the_host(&mut self, map: &Named<'_, G::Buffer>) -> Result<(), GpuError> {
        let (experts, at) = map.buffer("experts")?;
        let (rows, block, most) = (map.field("rows")?, map.small("block")?, map.field("blocks")?);
        let ticket = self.cut()?;
        self.gpu.wait(ticket)?;
        let mut bytes = vec![0; 4 * rows as usize];
        self.gpu.read(experts, at, &mut bytes)?;
        let chosen: Vec<u32> = bytes.as_chunks().0.iter().map(|b| u32::from_ne_bytes(*b)).collect();
        let (order, blocks) = sort(&chosen, block);
        // One copy for all of it.
        let part = |i: usize| blocks.iter().map(move |b| b[i]);
        let words = order.into_iter().chain(part(0)).chain(part(1)).chain(part(2));
        let words: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
        let count = blocks.len() as u64;
        let offsets = [0, 4 * rows, 4 * (rows + count), 4 * (rows + 2 * count)];
        let need = 4 * (rows + 3 * most);
        let buffer = match self.experts.sorted.take() {
            Some(sorted) if self.gpu.bytes(&sorted.buffer) >= need => sorted.buffer,
            _ => self.gpu.allocate(need, Contents::Activations)?,
        };
        self.gpu.upload(&buffer, 0, &words)?;
        self.experts.sorted = Some(Sorted { buffer, offsets, blocks: blocks.len() as u32 });
        Ok(())
    }
}
