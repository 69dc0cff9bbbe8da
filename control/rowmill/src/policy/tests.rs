use clap::Parser;

use super::*;
use crate::control::tests::answering_in_turn;

fn share(name: &str, has: u64) -> Value {
    json!({
        "dataplane": "dp\u{1b}1", "table": name, "cache_bytes": has, "wanted_bytes": 3 << 20, "cache_rows": 100, "held_rows": 90,
        "resizing": false, "lookups_per_s": 12345.6, "found": 0.5, "expected": 0.499, "gain_per_mib": 12.0, "loss_per_mib": null,
        "pinned": 7, "admission": "built", "pins": null, "moves": [{"s_ago": 61, "from_bytes": 1 << 20, "to_bytes": 3 << 20, "why": "it gains"}],
    })
}

fn table() -> Value {
    json!({
        "model": "m", "table": "hot", "sampled_by": "dp1", "rate": 0.0625, "weight": 2000.4, "curve": [{"rows": 5000, "hits": 0.25}],
        "shifted_s_ago": 5, "settings": {"min_bytes": 1 << 20, "pinned_share": 0.1}, "shares": [share("hot", 1 << 20)],
    })
}

fn dataplane() -> Value {
    json!({
        "name": "dp1", "model": "m", "generation": "1", "arena_bytes": 1 << 30, "free_bytes": 0, "heard_s_ago": 1, "published": "1.2",
        "follows": "1.1", "state": "it waits", "refused": ["no"], "shares": [share("hot", 1 << 20), share("cold", 3 << 20)],
    })
}

#[test]
fn pages_are_told_for_people() {
    let text = tables(&json!([table()]));
    for part in [
        "hot",
        "1.0 MiB",
        &thousands(12_346),
        "50.0 %",
        "49.9 %",
        "at least 1.0 MiB, 10.0 % of it pinned",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    let text = dataplanes(&json!([dataplane()]));
    for part in [
        "1.0 MiB -> 3.0 MiB",
        "it waits",
        "refused: no",
        "policy 1.2 published, 1.1 followed",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("3.0 MiB -> "), "{text}");
    assert!(dataplanes(&json!([])).contains("no dataplane has reported"));
    assert!(tables(&json!([])).contains("no dataplane that caches"));
    let text = explained(&json!({"table": table(), "dataplanes": [dataplane()]}));
    for part in [
        "6.2500 % of its rows",
        "25.0 %",
        "in dp1, beside the others: it waits",
        "1.0 MiB -> 3.0 MiB: it gains",
        "cold",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Of what is pinned and not to be, or can't be.
    let mut pinned = table();
    let share = &mut pinned["shares"][0];
    share["admission"] = json!("pinned");
    share["expected"] = Value::Null;
    share["pins"] =
        json!({"asked": 9000, "most": 2048, "sampled": 7, "short": "of 9000 rows 7 can be pinned"});
    let told = tables(&json!([pinned]));
    for part in [
        "- (only pinned rows come)",
        "1: of 9000 rows 7 can be pinned",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let shares = shares(&pinned);
    assert!(
        shares.contains(&format!("7 of {} asked", thousands(9000))),
        "{shares}"
    );
    assert!(shares.ends_with("of 9000 rows 7 can be pinned"), "{shares}");
    // Settings of tables that nobody has are there as well.
    let told = policies(&json!({"dataplanes": [dataplane()], "settings": [
        {"model": "m", "table": "itmes", "settings": {"min_bytes": 1 << 20}, "warnings": ["no dataplane has it"]},
    ]}));
    for part in [
        "it waits",
        "itmes",
        "at least 1.0 MiB",
        "warning: itmes of m: no dataplane has it",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // What is missing is told as a dash.
    assert!(explained(&json!({})).contains("- of model -"));
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: PolicyCommand,
}

/// What is asked in the end, where these are the settings of all tables; none where nobody asks for them.
fn asked(words: &[&str], settings: Option<&Value>) -> String {
    let page = settings.map(|page| {
        let text = page.to_string();
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}",
            text.len()
        )
    });
    let taken = "HTTP/1.1 204 No Content\r\n\r\n".to_owned();
    let (control, asked) = answering_in_turn(page.into_iter().chain([taken]).collect());
    let words = ["rowmill"].iter().chain(words);
    let mut line = Line::parse_from(words);
    if let PolicyCommand::Set(set) = &mut line.command {
        set.control = control;
    }
    line.command.run().unwrap();
    asked.join().unwrap()
}

#[test]
fn settings_are_sent() {
    let wrong = Line::try_parse_from(["rowmill", "set", "m", "a"]);
    let wrong = wrong.err().expect("nothing is set").to_string();
    assert!(
        wrong.contains("--min") && wrong.contains("--clear"),
        "{wrong}"
    );
    let none = json!([]);
    let text = asked(
        &["set", "m", "a b", "--min", "1MiB", "--pinned", "0.5"],
        Some(&none),
    );
    assert!(
        text.starts_with("PUT /v1/tables/m/a%20b/settings "),
        "{text}"
    );
    assert!(
        text.ends_with(r#"{"min_bytes":1048576,"pinned_share":0.5}"#),
        "{text}"
    );
    let pins = ["set", "m", "a", "--pinned", "0.5", "--admission", "pinned"];
    let text = asked(&pins, Some(&none));
    assert!(
        text.ends_with(r#"{"admission":"pinned","pinned_share":0.5}"#),
        "{text}"
    );
    // What is not named stays as it was: that table's, and no other one's.
    let known = json!([
        {"model": "m", "table": "b", "settings": {"min_bytes": 7}, "warnings": []},
        {"model": "m", "table": "a", "settings": {"min_bytes": 5, "max_bytes": 6, "pinned_share": null}, "warnings": []},
    ]);
    let text = asked(&["set", "m", "a", "--max", "1MiB"], Some(&known));
    assert!(
        text.ends_with(r#"{"max_bytes":1048576,"min_bytes":5}"#),
        "{text}"
    );
    let text = asked(&["set", "m", "a", "--clear"], None);
    assert!(
        text.starts_with("DELETE /v1/tables/m/a/settings "),
        "{text}"
    );
    for wrong in [
        &["set", "m", "a"][..],
        &["set", "m", "a", "--clear", "--min", "1MiB"],
        &["set", "m", "a", "--admission", "all"],
        &["set", "m", "a", "--pinned", "nan"],
        &["set", "m", "a", "--pinned", "-0.1"],
    ] {
        assert!(Line::try_parse_from(["rowmill"].iter().chain(wrong)).is_err());
    }
}
