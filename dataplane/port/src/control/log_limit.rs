//! A bound on what clients can write into the log.

use std::time::Instant;

/// Lets a bounded number of lines about clients into the log each second, so that none can fill it, and
/// says how many it kept out.
pub(crate) struct LogLimit {
    since: Instant,
    lines: u32,
}

impl LogLimit {
    const LINES_PER_SECOND: u32 = 10;

    pub(crate) fn new(now: Instant) -> LogLimit {
        LogLimit {
            since: now,
            lines: 0,
        }
    }

    /// Whether a line may be written now.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since).as_secs() >= 1 {
            let kept_out = self.lines.saturating_sub(Self::LINES_PER_SECOND);
            if kept_out > 0 {
                tracing::warn!(kept_out, "lines about clients were left out of the log");
            }
            *self = LogLimit::new(now);
        }
        self.lines += 1;
        self.lines <= Self::LINES_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_log_is_bounded() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        let admitted = (0..1000).filter(|_| limit.admit(start)).count();
        assert_eq!(admitted, 10);
        assert!(limit.admit(start + Duration::from_secs(1)));
    }
}
