//! Rows of the comparison, as text and as JSON.

use serde_json::{Value, json};

/// Measurements of one side, sorted.
#[derive(Clone, Debug)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Of at least one measurement.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    pub fn median(&self) -> f64 {
        let mid = self.0.len() / 2;
        if self.0.len() % 2 == 1 { self.0[mid] } else { (self.0[mid - 1] + self.0[mid]) / 2.0 }
    }

    fn json(&self) -> Value {
        json!({ "median": self.median(), "min": self.0[0], "max": self.0[self.0.len() - 1] })
    }
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// More is better.
    TokensPerSecond,
    /// More is better.
    GigabytesPerSecond,
    /// Less is better.
    Microseconds,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::TokensPerSecond => "tok/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::Microseconds => "µs",
        }
    }
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which idea.
    pub idea: &'static str,
    /// Whole model or a kernel, and where.
    pub measured: String,
    pub unit: Unit,
    /// Without the idea.
    pub off: Samples,
    /// With it.
    pub on: Samples,
    /// The mission's figure.
    pub mission: Option<&'static str>,
    /// What else was seen.
    pub note: String,
}

/// The columns.
pub fn head() -> String {
    format!("{:<24} {:<34} {:>6} {:>10} {:>10} {:>9}  {}", "idea", "measured", "", "off", "on", "gain", "mission")
}

impl Row {
    /// How much faster the idea makes it, in percent.
    pub fn gain(&self) -> f64 {
        let (off, on) = (self.off.median(), self.on.median());
        let ratio = if self.unit == Unit::Microseconds { off / on } else { on / off };
        (ratio - 1.0) * 100.0
    }

    pub fn line(&self) -> String {
        let (off, on, gain) = (self.off.median(), self.on.median(), self.gain());
        format!(
            "{:<24} {:<34} {:>6} {off:>10.1} {on:>10.1} {gain:>+7.1} %  {}",
            self.idea,
            self.measured,
            self.unit.name(),
            self.mission.unwrap_or("–")
        )
    }

    /// The note with what it belongs to.
    pub fn remark(&self) -> String {
        format!("{}, {}: {}", self.idea, self.measured, self.note)
    }

    pub fn json(&self) -> Value {
        json!({
            "idea": self.idea,
            "measured": self.measured,
            "unit": self.unit.name(),
            "off": self.off.json(),
            "on": self.on.json(),
            "gain_percent": self.gain(),
            "mission": self.mission,
            "note": self.note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_a_ratio_of_speeds() {
        let row = |unit, off, on| Row {
            idea: "",
            measured: String::new(),
            unit,
            off: Samples::of(vec![off]),
            on: Samples::of(vec![on, on + 1.0, on - 1.0]),
            mission: None,
            note: String::new(),
        };
        assert!((row(Unit::TokensPerSecond, 100.0, 150.0).gain() - 50.0).abs() < 1e-9);
        assert!((row(Unit::Microseconds, 150.0, 100.0).gain() - 50.0).abs() < 1e-9);
    }
}
