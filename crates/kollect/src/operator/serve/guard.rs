//! Authentication and authorization: the API server says which user a token belongs to, and what that user may do.

mod cache;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, anyhow};
use axum::{
    Router,
    extract::{Request, State},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use cache::Cache;
use http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest, Sha256};
use tokio::{
    sync::Semaphore,
    time::{self, Instant},
};

use super::{Notice, Report};
use crate::cluster::plain;

/// How long a positive review is cached.
const ALLOWED: Duration = Duration::from_secs(30);
/// How long a negative review is cached: shorter, so that a new permission works soon.
const REFUSED: Duration = Duration::from_secs(5);
const ENTRIES: usize = 512;
/// Longer than any token that API servers issue.
const LONGEST_TOKEN: usize = 16 << 10;
/// Limit of concurrent reviews: clients with bad tokens must not flood the API server through this server.
const REVIEWS: usize = 8;
/// Time limit of both reviews, including the wait for a free slot.
const PATIENCE: Duration = Duration::from_secs(10);
/// The least time between two notices that reviews fail.
const NOTICE_PAUSE: Duration = Duration::from_secs(30);

/// What the API server said about one token, verb and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// There is no token, or the API server does not accept it.
    Unknown,
    /// The user of the token may not do this.
    Forbidden,
}

/// Lets a request through only if its user has the right to the path, a non-resource URL.
pub(crate) struct Guard {
    client: Client,
    reviews: Semaphore,
    allowed: Mutex<Cache<Verdict>>,
    /// A cache of its own, so that invalid tokens do not evict valid ones.
    refused: Mutex<Cache<Verdict>>,
    report: Report,
    last_notice: Mutex<Option<Instant>>,
}

impl Guard {
    /// `client` needs the right to create `tokenreviews` and `subjectaccessreviews`.
    pub(crate) fn new(client: Client, report: Report) -> Arc<Self> {
        Arc::new(Self {
            client,
            reviews: Semaphore::new(REVIEWS),
            allowed: Mutex::new(Cache::new(ENTRIES)),
            refused: Mutex::new(Cache::new(ENTRIES)),
            report,
            last_notice: Mutex::default(),
        })
    }

    /// Puts the guard before all routes of a router. The router must not be nested: the guard must see the paths that
    /// clients request.
    pub(crate) fn protect(self: Arc<Self>, router: Router) -> Router {
        router.layer(from_fn_with_state(self, pass))
    }

    async fn verdict(&self, headers: &HeaderMap, verb: &str, path: &str) -> anyhow::Result<Verdict> {
        let Some(token) = bearer(headers) else { return Ok(Verdict::Unknown) };
        let key = key(token, verb, path);
        let now = Instant::now();
        for cache in [&self.allowed, &self.refused] {
            if let Some(verdict) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key, now) {
                return Ok(verdict);
            }
        }
        let verdict = time::timeout(PATIENCE, self.review(token, verb, path)).await;
        let verdict = verdict.map_err(|_| anyhow!("no answer for {PATIENCE:?}"))??;
        let (cache, lifetime) = match verdict {
            Verdict::Allowed => (&self.allowed, ALLOWED),
            Verdict::Unknown | Verdict::Forbidden => (&self.refused, REFUSED),
        };
        // The lifetime starts with the question, because the answer may be as old.
        cache.lock().unwrap_or_else(PoisonError::into_inner).put(key, verdict, now, now + lifetime);
        Ok(verdict)
    }

    async fn review(&self, token: &str, verb: &str, path: &str) -> anyhow::Result<Verdict> {
        let _slot = self.reviews.acquire().await?;
        let Some(user) = self.user(token).await? else { return Ok(Verdict::Unknown) };
        Ok(if self.may(user, verb, path).await? { Verdict::Allowed } else { Verdict::Forbidden })
    }

    async fn user(&self, token: &str) -> anyhow::Result<Option<UserInfo>> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(plain).context("create a TokenReview")?;
        let status = answer.status.context("a TokenReview without a status")?;
        Ok(if status.authenticated == Some(true) { Some(status.user.unwrap_or_default()) } else { None })
    }

    async fn may(&self, user: UserInfo, verb: &str, path: &str) -> anyhow::Result<bool> {
        let attributes = NonResourceAttributes { path: Some(path.to_owned()), verb: Some(verb.to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            non_resource_attributes: Some(attributes),
            resource_attributes: None,
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews = Api::<SubjectAccessReview>::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(plain).context("create a SubjectAccessReview")?;
        let status = answer.status.context("a SubjectAccessReview without a status")?;
        Ok(status.allowed && status.denied != Some(true))
    }

    /// Reports why a review failed, at most once per [`NOTICE_PAUSE`]. Clients do not get the cause.
    fn failed(&self, error: &anyhow::Error) {
        let now = Instant::now();
        let mut last = self.last_notice.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now >= last + NOTICE_PAUSE) {
            *last = Some(now);
            drop(last);
            (self.report)(Notice::ReviewFailed(format!("{error:#}")));
        }
    }
}

async fn pass(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let verb = request.method().as_str().to_ascii_lowercase();
    match guard.verdict(request.headers(), &verb, request.uri().path()).await {
        Ok(Verdict::Allowed) => next.run(request).await,
        Ok(Verdict::Unknown) => {
            let challenge = [(WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, "unauthorized\n").into_response()
        }
        Ok(Verdict::Forbidden) => (StatusCode::FORBIDDEN, "forbidden\n").into_response(),
        Err(error) => {
            guard.failed(&error);
            (StatusCode::INTERNAL_SERVER_ERROR, "the rights could not be reviewed\n").into_response()
        }
    }
}

/// The token, if there is exactly one Authorization header and its token is well-formed.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    let is_token = !token.is_empty()
        && token.len() <= LONGEST_TOKEN
        && token.bytes().all(|byte| byte.is_ascii_graphic());
    (scheme.eq_ignore_ascii_case("bearer") && is_token).then_some(token)
}

/// A cache key: a hash, so that no token is stored and no two tokens have the same key.
fn key(token: &str, verb: &str, path: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    // No part contains a line break, so that different parts never give the same input.
    for part in [verb, path, token] {
        hash.update(part);
        hash.update("\n");
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests;
