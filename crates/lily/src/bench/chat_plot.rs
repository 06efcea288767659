//! Conversations as a picture: what each turn read, and how long its first token took.

use std::fmt::Write;

use super::chat::{Chat, Turn};
use super::plot::{Axis, LABELS, LINE, MARGIN, PANEL, WIDTH, colour, escape, legend, line, marker, page};
use super::report::grouped;

/// A line of the picture.
struct Series<'a> {
    name: String,
    about: String,
    rows: &'a [Turn],
}

/// Draws all runs of all files.
pub fn svg(chats: &[Chat]) -> String {
    let all: Vec<Series> = chats.iter().flat_map(series).collect();
    let top = MARGIN + LINE * all.len() as f64;
    let height = top + PANEL + MARGIN;
    let mut out = page(height, "Prompt tokens read and time to the first token by turn of a conversation", all.len());
    for (i, series) in all.iter().enumerate() {
        legend(&mut out, i, &series.name, &series.about);
    }
    let width = (WIDTH - 3.0 * MARGIN) / 2.0;
    let read = |row: &Turn| row.prefilled_tokens.map(|n| n as f64);
    panel(&mut out, &all, "Prompt tokens read", "", [MARGIN, top], width, &read);
    let time = |row: &Turn| Some(1e3 * row.ttft_s);
    panel(&mut out, &all, "Time to the first token", "milliseconds", [2.0 * MARGIN + width, top], width, &time);
    out + "</svg>\n"
}

fn series(chat: &Chat) -> Vec<Series<'_>> {
    let about = line([chat.version.clone(), chat.device.clone(), chat.weights.clone()]);
    let name = |cache: bool| format!("{}, {}", chat.engine, if cache { "with its cache" } else { "without a cache" });
    chat.runs.iter().map(|run| Series { name: name(run.cache), about: about.clone(), rows: &run.rows }).collect()
}

fn panel(
    out: &mut String,
    all: &[Series],
    title: &str,
    unit: &str,
    [left, top]: [f64; 2],
    width: f64,
    value: &dyn Fn(&Turn) -> Option<f64>,
) {
    let vertical = Axis::of(all.iter().flat_map(|s| s.rows).filter_map(value));
    let turns = all.iter().flat_map(|s| s.rows).map(|row| row.turn).max().unwrap_or(1).max(2);
    let [x0, x1] = [left + LABELS, left + width - 8.0];
    let [y0, y1] = [top + PANEL - 44.0, top + 44.0];
    let y = |v: f64| y0 + (y1 - y0) * vertical.place(v);
    let x = |turn: u64| x0 + 12.0 + (x1 - x0 - 24.0) * (turn as f64 - 1.0) / (turns as f64 - 1.0);
    let note = match (unit, vertical.log) {
        ("", true) => "logarithmic".to_owned(),
        (unit, true) => format!("{unit}, logarithmic"),
        (unit, false) => unit.to_owned(),
    };
    let _ = writeln!(
        out,
        "<text class=\"title\" x=\"{left}\" y=\"{:.1}\">{title}<tspan class=\"quiet\" dx=\"8\" font-size=\"12\" font-weight=\"400\">{note}</tspan></text>",
        top + 26.0
    );
    for tick in &vertical.ticks {
        let (at, class) = (y(*tick), if *tick == 0.0 { "axis" } else { "grid" });
        let _ = write!(out, "<path class=\"{class}\" d=\"M{x0:.1} {at:.1}H{x1:.1}\"/>");
        let label = if *tick >= 1.0 || *tick == 0.0 { grouped(*tick) } else { tick.to_string() };
        let _ = writeln!(out, "<text class=\"quiet end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", x0 - 8.0, at + 4.0);
    }
    for turn in (1..=turns).filter(|turn| *turn == 1 || turn.is_multiple_of(5)) {
        let at = x(turn);
        let _ = writeln!(
            out,
            "<path class=\"axis\" d=\"M{at:.1} {y0:.1}v4\"/><text class=\"quiet middle\" x=\"{at:.1}\" y=\"{:.1}\">{turn}</text>",
            y0 + 18.0
        );
    }
    let _ =
        writeln!(out, "<text class=\"quiet middle\" x=\"{:.1}\" y=\"{:.1}\">turn</text>", (x0 + x1) / 2.0, y0 + 36.0);
    for (i, series) in all.iter().enumerate().rev() {
        let points: Vec<(f64, f64)> =
            series.rows.iter().filter_map(|row| Some((x(row.turn), y(value(row)?)))).collect();
        let places: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let _ = writeln!(
            out,
            "<path class=\"s{} line\" data-run=\"{}\" d=\"M{}\"/>",
            colour(i),
            escape(&series.name),
            places.join("L")
        );
        points.iter().for_each(|&(x, y)| marker(out, i, x, y));
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::super::chat::tests::example;
    use super::*;

    #[test]
    fn the_picture_is_xml_with_every_run_in_both_panels() {
        let mut peer = example("a<b");
        peer.runs.truncate(1);
        peer.runs[0].rows.iter_mut().for_each(|row| row.prefilled_tokens = None);
        let text = svg(&[example("lily"), peer]);
        let xml = roxmltree::Document::parse(&text).unwrap();
        let lines = |name: &str| xml.descendants().filter(|n| n.attribute("data-run") == Some(name)).count();
        for name in ["lily, with its cache", "lily, without a cache", "a<b, with its cache"] {
            assert_eq!(lines(name), 2, "{name}");
        }
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }
}
