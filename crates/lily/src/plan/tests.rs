use lily_model::{Footprint, SequenceBytes, Shape};

use super::*;

const GB: u64 = 1_000_000_000;

/// The 35B model on a GPU, with BF16 keys and values.
fn large(context: usize) -> Footprint {
    let s = Shape::qwen3_6_35b_a3b();
    let sequence = SequenceBytes { state: 2 * 64_400_000, block: 64 * 2 * s.kv_values_per_token() };
    Footprint { weights: 195 * GB / 10, mapped: false, sequence, scratch: GB / 2 + context as u64 }
}

fn mapped(context: usize) -> Footprint {
    Footprint { mapped: true, ..large(context) }
}

fn wish(footprint: &dyn Fn(usize) -> Footprint, limit: Option<u64>) -> Wish<'_> {
    Wish { program: 0, footprint, most: 262_144, parallel: 2, context: Context::Auto, cache: None, limit }
}

#[test]
fn auto_takes_the_largest_context_that_fits() {
    let mut last = 0;
    for limit in [22, 23, 24, 26, 28, 32, 36, 48, 64] {
        let w = wish(&large, Some(limit * GB));
        let plan = w.plan().unwrap();
        assert!(plan.total() <= limit * GB, "{plan}");
        assert!(plan.context >= last && plan.context.is_multiple_of(64), "{plan}");
        let next = plan.context + 64;
        if next <= 262_144 {
            let sequence = large(next).sequence.of(next);
            let both = large(next).weights + large(next).scratch + 2 * sequence + plan.cache;
            assert!(both > limit * GB, "{next} would fit in {limit} GB: {plan}");
        }
        last = plan.context;
    }
    assert_eq!(last, 262_144);
    assert_eq!(wish(&large, None).plan().unwrap().context, 262_144);
}

#[test]
fn nothing_said_is_at_most_the_usual_context() {
    let w = |limit| Wish { context: Context::Default, ..wish(&large, Some(limit)) };
    assert_eq!(w(64 * GB).plan().unwrap().context, 32_768);
    let plan = w(22 * GB).plan().unwrap();
    assert!((4096..32_768).contains(&plan.context) && plan.total() <= 22 * GB, "{plan}");
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_the_one_that_does() {
    let w = |tokens, limit| Wish { context: Context::Tokens(tokens), ..wish(&large, Some(limit)) };
    let error = w(262_144, 24 * GB).plan().unwrap_err();
    let PlanError::Context { largest, .. } = error else { panic!("{error}") };
    assert!(error.to_string().starts_with("--ctx 262144 does not fit: one request may need 5.50 GB"), "{error}");
    assert!(w(largest, 24 * GB).plan().is_ok());
    assert!(matches!(w(largest + 64, 24 * GB).plan(), Err(PlanError::Context { .. })));
    assert_eq!(w(262_145, 64 * GB).plan(), Err(PlanError::Length(262_145, 262_144)));
}

#[test]
fn requests_that_fit_one_by_one_wait_for_each_other() {
    let w = Wish { context: Context::Tokens(131_072), ..wish(&large, Some(24 * GB)) };
    let plan = w.plan().unwrap();
    let sequence = large(131_072).sequence.of(131_072);
    assert!((sequence..2 * sequence).contains(&plan.memory) && plan.total() <= 24 * GB, "{plan}");
    assert_eq!(plan.cache, 0);
    assert!(plan.to_string().contains("a request that does not fit waits"), "{plan}");
}

#[test]
fn what_was_asked_for_the_cache_must_fit() {
    let w = |cache| Wish { cache: Some(cache), context: Context::Tokens(32_768), ..wish(&large, Some(24 * GB)) };
    let plan = w(GB).plan().unwrap();
    assert_eq!((plan.cache, plan.memory), (GB, 2 * large(32_768).sequence.of(32_768) + GB));
    let auto = Wish { context: Context::Auto, ..w(4 * GB) }.plan().unwrap_err();
    assert!(auto.to_string().contains("beside a request of 4096 tokens"), "{auto}");
    let error = w(4 * GB).plan().unwrap_err();
    assert!(error.to_string().starts_with("--cache-bytes 4000000000 does not fit: 3.20 GB"), "{error}");
}

#[test]
fn mapped_weights_need_not_fit() {
    let plan = wish(&mapped, Some(8 * GB)).plan().unwrap();
    assert!(plan.total() > 8 * GB && plan.total() - 195 * GB / 10 <= 8 * GB, "{plan}");
    assert!(matches!(wish(&large, Some(8 * GB)).plan(), Err(PlanError::Model { .. })));
}

#[test]
fn a_mac_of_24_gb_is_told_what_would_help() {
    // Two thirds of 24 GiB, which is less than the weights.
    let error = wish(&large, Some(17_179_869_184)).plan().unwrap_err();
    assert!(error.to_string().starts_with("the weights take 19.5 GB"), "{error}");
    let advice = wired_limit_advice(&error, 24 << 30).unwrap();
    assert!(advice.contains("macOS gives the GPU 17.2 GB of this Mac's 25.8 GB"), "{advice}");
    let mib: u64 = advice.split("wired_limit_mb=").nth(1).unwrap().split('`').next().unwrap().parse().unwrap();
    let raised = wish(&large, Some(mib << 20)).plan().unwrap();
    assert!(raised.context >= 4096, "{raised}");
    // 16 GB hold the weights in no way.
    let error = wish(&large, Some(11 << 30)).plan().unwrap_err();
    assert!(wired_limit_advice(&error, 16 << 30).unwrap().contains("too little for the system"));
    assert!(wired_limit_advice(&PlanError::Length(2, 1), 16 << 30).is_none());
}

#[test]
fn only_a_gpu_that_nobody_asked_for_leaves_a_large_model_to_the_cpu() {
    let large = wish(&large, Some(8 * GB)).plan().unwrap_err();
    assert!(falls_back(true, true, &large));
    assert!(!falls_back(false, true, &large), "--device metal says no");
    assert!(!falls_back(true, false, &large), "the CPU is the last one");
    assert!(!falls_back(true, true, &PlanError::Length(2, 1)), "the question itself is wrong");
    // Over the map, the same memory holds the same model.
    assert!(wish(&mapped, Some(8 * GB)).plan().is_ok());
}

#[test]
fn contexts_are_read() {
    assert_eq!("auto".parse(), Ok(Context::Auto));
    assert_eq!("4096".parse(), Ok(Context::Tokens(4096)));
    for bad in ["", "1", "-3", "many", "AUTO ", "4k"] {
        assert!(bad.parse::<Context>().is_err(), "{bad}");
    }
}

#[test]
fn sizes_have_three_digits() {
    for (bytes, text) in
        [(0, "0 kB"), (1, "1 kB"), (1_234_567, "1.23 MB"), (64_400_000, "64.4 MB"), (735 * GB, "735 GB")]
    {
        assert_eq!(Size(bytes).to_string(), text);
    }
}
