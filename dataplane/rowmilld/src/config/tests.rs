use rowmill_cache::OnFailure;

use super::*;

const LEAST: &str = "[model]\ndirectory = \"/models/demo/1\"\n";

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("r.toml")).map_err(|e| e.to_string())
}

#[test]
fn defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(config.endpoints, ["shm:/run/rowmill/rowmill.sock"]);
    assert_eq!(config.model.name(), "1");
    assert_eq!(config.model.huge_pages, HugePages::Prefer);
    assert!(config.model.verify && config.workers.pin && config.idle.sleep);
    assert_eq!(config.limits.engine(), rowmill_engine::Limits::DEFAULT);
    assert_eq!(config.admin, Admin::default());
}

#[test]
fn example_shows_every_default() {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/rowmilld.toml"
    ));
    let example = Config::load(path).unwrap();
    let mut least = parse(LEAST).unwrap();
    least.model.directory = example.model.directory.clone();
    least.model.name = example.model.name.clone();
    assert_eq!(example, least, "the example writes the defaults out");
}

#[test]
fn control_planes_have_addresses() {
    let control = |line: &str| parse(&format!("{LEAST}[control]\n{line}\n")).map(|c| c.control);
    assert!(!control("").unwrap().is_on());
    let tcp = control("address = \"http://[::1]:7403/\"\nname = \"a-1\"").unwrap();
    assert_eq!(
        (tcp.address.to_string(), tcp.name()),
        ("http://[::1]:7403".into(), "a-1".into())
    );
    let unix = control("address = \"unix:/run/c.sock\"\nname = \"a\"").unwrap();
    assert_eq!(unix.address, ControlAddress::Unix("/run/c.sock".into()));
    for (line, why) in [
        ("address = \"127.0.0.1:7403\"", "`http://HOST:PORT`"),
        ("address = \"http://a/b:1\"", "`http://HOST:PORT`"),
        (
            "address = \"https://10.0.0.1:7403\"\nname = \"a\"",
            "control.ca: is not set",
        ),
        (
            "address = \"https://c:7403\"\nname = \"a\"\nca = \"b\"\nkey = \"c\"",
            "set both, or neither",
        ),
        (
            "address = \"http://localhost:1\"\nname = \"a\"\nca = \"b\"",
            "speaks no TLS",
        ),
        ("address = \"unix:\"", "`unix:PATH`"),
        (
            "address = \"http://10.0.0.1:7403\"\nname = \"a\"",
            "`insecure = true`",
        ),
        (
            "address = \"http://localhost:1\"\nname = \"a b\"",
            "control.name: is `a b`",
        ),
    ] {
        let error = control(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
    }
    let secured =
        control("address = \"https://c:7403\"\nname = \"a\"\nca = \"ca.pem\"\ntoken_file = \"t\"")
            .unwrap();
    assert_eq!(secured.address.to_string(), "https://c:7403");
    let credentials = secured.credentials();
    assert_eq!(
        credentials.tls.unwrap().ca,
        std::path::PathBuf::from("ca.pem")
    );
    assert_eq!(credentials.token_file, Some("t".into()));
    let beyond =
        format!("insecure = true\n{LEAST}[control]\naddress = \"http://c:7403\"\nname = \"a\"\n");
    assert!(parse(&beyond).is_ok());
}

#[test]
fn workers_can_be_written_in_three_ways() {
    let cpus =
        |text: &str| parse(&format!("{LEAST}[workers]\ncpus = {text}\n")).map(|c| c.workers.cpus);
    assert_eq!(cpus("\"auto\""), Ok(Cpus::Auto));
    assert_eq!(cpus("3"), Ok(Cpus::Count(3)));
    assert_eq!(cpus("[2, 5]"), Ok(Cpus::List(vec![2, 5])));
}

#[test]
fn each_table_says_what_is_done_about_rows_that_cannot_be_read() {
    let failure = |line: &str| {
        let text = format!(
            "{LEAST}[cache]\nnext_tier = \"/copy\"\n[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\n{line}\n"
        );
        let Failure { next_tier, then } = parse(&text).unwrap().tables[0].on_failure;
        (next_tier, then)
    };
    let cases = [
        ("", (false, OnFailure::Error)),
        ("on_failure = \"error\"", (false, OnFailure::Error)),
        (
            "on_failure = \"default-row\"",
            (false, OnFailure::DefaultRow),
        ),
        (
            "on_failure = [\"default-row\"]",
            (false, OnFailure::DefaultRow),
        ),
        (
            "on_failure = [\"next-tier\", \"error\"]",
            (true, OnFailure::Error),
        ),
        (
            "on_failure = [\"next-tier\", \"default-row\"]",
            (true, OnFailure::DefaultRow),
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(failure(line), expected, "{line:?}");
    }
}

#[test]
fn bad_values_are_refused_with_place_and_advice() {
    let cases = [
        ("", "missing field `model`", ""),
        ("endpoints = [\n[model]", "line 2", "r.toml"),
        (
            "socket_mode = 0o1777\n[model]\ndirectory = \"/m\"",
            "socket_mode",
            "0o660",
        ),
        (
            "[model]\ndirectory = \"\"",
            "model.directory",
            "name a generation",
        ),
        (
            "[model]\ndirectory = \"/m\"\nhugepages = true",
            "line 3",
            "unknown field `hugepages`",
        ),
        (
            "[model]\ndirectory = \"/m\"\nhuge_pages = \"maybe\"",
            "line 3",
            "`require`, `prefer` or `off`",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\nisa = \"sse\"",
            "line 4",
            "`avx512` or `neon`, not `sse`",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\ncpus = 0",
            "workers.cpus",
            "write 1 to",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\ncpus = -1",
            "line 4",
            "a number of workers",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\ncpus = []",
            "workers.cpus",
            "lists 0 CPUs",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\ncpus = [1, 2, 1]",
            "workers.cpus",
            "CPU 1 twice",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[workers]\ncpus = \"all\"",
            "line 4",
            "list of CPU numbers",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[admin]\naddress = \"localhost\"",
            "line 4",
            "127.0.0.1:7401",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[limits]\ncredits = 1000",
            "limits.credits",
            "write 1 to 256",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[limits]\nmicro_batch_us = 0",
            "limits.micro_batch_us",
            "1 to 10000",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[limits]\nslots = \"many\"",
            "line 4",
            "invalid type",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[log]\nfilter = \"a=b=c\"",
            "log.filter",
            "a level such as",
        ),
        (
            "endpoints = []\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "is empty",
        ),
        (
            "endpoints = [\"shm:x.sock\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "begin with `/`",
        ),
        (
            "endpoints = [\"rdma://h:7400\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "set `insecure = true`",
        ),
        (
            "insecure = true\nendpoints = [\"rdma://h\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "a port is missing",
        ),
        (
            "endpoints = [\"tcp://h:7400\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "this build supports shm:/path/NAME.sock and rdma://ADDRESS:PORT",
        ),
        (
            "insecure = true\nendpoints = [\"rdma://h:1\"]\n[limits]\nmax_ids = 1000000\n[model]\ndirectory = \"/m\"",
            "rdma.stage_blocks",
            "lower the limits, or raise this",
        ),
        (
            "[rdma]\nretry_count = 7\n[model]\ndirectory = \"/m\"",
            "rdma.retry_count",
            "7 means for ever",
        ),
        (
            "endpoints = [\"shm:/a\", \"shm:/a\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "listed twice",
        ),
        (
            "endpoints = [\"shm:/a\", \"shm:/b\"]\n[model]\ndirectory = \"/m\"",
            "endpoints",
            "this build serves one",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\non_failure = \"next-tier\"",
            "line 7",
            "when the next tier fails too: `[\"next-tier\", \"error\"]`",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\non_failure = [\"error\", \"next-tier\"]",
            "line 7",
            "expected `\"error\"`, `\"default-row\"`",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\non_failure = [\"next-tier\", \"error\"]",
            "tables.on_failure: of `a`",
            "set cache.next_tier",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nnext_tier = \"\"",
            "cache.next_tier",
            "is empty; write the folder",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[[tables]]\nname = \"a\"\nplacement = \"hot\"\ncache_bytes = 1",
            "line 5",
            "expected `resident` or `cached`",
        ),
        (
            "[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\n[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1\n[model]\ndirectory = \"/m\"",
            "tables.name",
            "`a` is listed twice",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nstaged_rows = 100",
            "cache.staged_rows",
            "write 8192 to",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nread_bytes = 12289",
            "cache.read_bytes",
            "a multiple of 4096",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\npage_cache = \"use\"",
            "line 4",
            "`refuse` or `allow`, not `use`",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nwarm_file = \"/\"",
            "cache.warm_file",
            "a path such as",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nwarm_file = \"/tmp/w/\"",
            "cache.warm_file",
            "names no file",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nwarm_file = \"/w\"\nprefetched_rows = 0",
            "cache.warm_file",
            "write more there",
        ),
        (
            "[model]\ndirectory = \"/m\"\n[cache]\nwarm_every_s = 0",
            "cache.warm_every_s",
            "write 1 to 86400",
        ),
    ];
    for (text, place, advice) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains("r.toml"), "{text:?} gives {error}");
        assert!(
            error.contains(place) && error.contains(advice),
            "{text:?} gives {error}"
        );
    }
}

#[test]
fn the_arena_has_room_for_shares_that_are_configured() {
    let table = |name: &str, placement: &str, bytes: u64| {
        format!(
            "[[tables]]\nname = \"{name}\"\nplacement = \"{placement}\"\ncache_bytes = {bytes}\n"
        )
    };
    let with = |arena: &str| {
        let tables =
            table("a", "cached", 10) + &table("b", "cached", 20) + &table("c", "resident", 25);
        parse(&format!("{LEAST}[cache]\n{arena}\n{tables}"))
    };
    assert_eq!(with("").unwrap().arena_bytes(), 55);
    assert_eq!(with("arena_bytes = 30").unwrap().arena_bytes(), 30);
    let refused = with("arena_bytes = 29").unwrap_err();
    assert!(
        refused.contains("cache.arena_bytes: is 29") && refused.contains("at least 30"),
        "{refused}"
    );
    let alone = |bytes| {
        parse(&format!(
            "{LEAST}[cache]\narena_bytes = {bytes}\n{}",
            table("c", "resident", 25)
        ))
    };
    assert!(alone(25).is_ok() && alone(24).is_err());
}

#[test]
fn memory_of_others_is_read_and_offered_where_that_can_work() {
    let table = "[[tables]]\nname = \"a\"\nplacement = \"cached\"\ncache_bytes = 1048576\n";
    let with = |text: &str| parse(&format!("insecure = true\n{LEAST}{text}"));
    let export = with("[export]\nlisten = \"rdma://10.0.0.1:7404\"\n").unwrap();
    let export = export.export.unwrap();
    assert_eq!((export.lease_ms, export.readers), (3000, 16));
    let remote = with(&format!("{table}[remote]\nurl = \"rdma://a:7404\"\n")).unwrap();
    let remote = remote.remote.unwrap();
    assert_eq!(
        (remote.tried, remote.reads, remote.budget_ms),
        (Tried::Before, 128, 200)
    );
    let url = "url = \"rdma://a:7404\"";
    for (text, why) in [
        ("[export]\n".to_owned(), "missing field `listen`"),
        (
            "[export]\nlisten = \"tcp://a:1\"\n".into(),
            "rdma://host:7400",
        ),
        (
            "[export]\nlisten = \"rdma://a:1\"\nlease_ms = 100\n".into(),
            "write 1500 to 60000",
        ),
        (
            "[export]\nlisten = \"rdma://a:1\"\nreaders = 0\n".into(),
            "write 1 to 64",
        ),
        (
            "[export]\nlisten = \"rdma://a:1\"\n[deltas]\ndirectory = \"/var/lib/d\"\n".into(),
            "must not change",
        ),
        (
            format!("[remote]\n{url}\n"),
            "list those whose rows are to be read there",
        ),
        (
            format!("{table}[remote]\n{url}\ntried = \"now\"\n"),
            "`before` or `after`",
        ),
        (
            format!("{table}[remote]\n{url}\nreads = 0\n"),
            "write 1 to 4096",
        ),
        (
            format!("{table}[remote]\nurl = \"rdma://a\"\n"),
            "a port is missing",
        ),
    ] {
        let said = with(&text).unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    let open = format!("{LEAST}[export]\nlisten = \"rdma://a:1\"\n");
    assert!(parse(&open).unwrap_err().contains("insecure = true"));
}
