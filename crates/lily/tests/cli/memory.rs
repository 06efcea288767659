//! The memory plan, and that it is kept.

use crate::common::run;

#[test]
fn what_does_not_fit_is_refused_before_it_is_loaded() {
    let done = run(&["serve", "--port", "0", "--memory", "1MB"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("1.00 MB are there for them"), "{done:?}");
    let done = run(&["serve", "--port", "0", "--cache-bytes", "1GiB", "--memory", "500MB"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("--cache-bytes 1073741824 does not fit: "), "{done:?}");
    let done = run(&["serve", "--ctx", "many"]);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("--ctx") && done.err.contains("or auto"), "{done:?}");
}

/// The peak is read where Linux keeps it.
#[cfg(target_os = "linux")]
mod peak {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;
    use std::process::{Child, ChildStderr};

    use crate::common::{LIMIT, lily};

    /// Kills the server when a test ends, however it ends.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// What a server says until it is ready.
    fn announcement(stderr: ChildStderr) -> String {
        let mut said = String::new();
        for line in BufReader::new(stderr).lines() {
            said += &line.unwrap();
            said.push('\n');
            if said.contains("Ctrl-C stops") {
                break;
            }
        }
        said
    }

    #[test]
    fn a_request_of_the_whole_context_stays_within_the_plan() {
        let args =
            ["serve", "--port", "0", "--ctx", "560", "--parallel", "1", "--cache-bytes", "2MB", "--threads", "2"];
        let mut server = Server(lily(&args).spawn().unwrap());
        let said = announcement(server.0.stderr.take().unwrap());
        let after = |name: &str| {
            said.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap_or_else(|| panic!("{said}"))
        };
        let planned = after("together").trim().split(" MB").next().unwrap().parse::<f64>().unwrap() * 1e6;
        let address = after("address").trim().trim_start_matches("http://").trim_end_matches("/v1").to_owned();

        let body = format!(
            r#"{{"messages": [{{"role": "user", "content": "{}"}}], "chat_template_kwargs": {{"enable_thinking": false}}}}"#,
            "sea ".repeat(535)
        );
        let mut stream = TcpStream::connect(&address).unwrap();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let tokens = reply.split(r#""prompt_tokens":"#).nth(1).unwrap_or_else(|| panic!("{reply}"));
        let tokens: usize = tokens.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
        assert!(tokens > 540, "{tokens} tokens do not fill the context");

        let status = std::fs::read_to_string(format!("/proc/{}/status", server.0.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak = 1024.0 * peak.trim().split(' ').next().unwrap().parse::<f64>().unwrap();
        assert!(peak <= 1.05 * planned, "{peak} bytes at most, {planned} planned:\n{said}");
        // Nor is the plan a fence far away.
        assert!(peak >= 0.8 * planned, "{peak} bytes at most, {planned} planned:\n{said}");
    }
}
