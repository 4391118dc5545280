//! Authentication and authorization: the API server decides which user a token belongs to, and what that user may do.

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
use cache::ExpiringCache;
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

use super::{ReportNotice, ServerNotice};
use crate::cluster::innermost_cause;

/// How long a positive review is cached.
const ALLOWED_LIFETIME: Duration = Duration::from_secs(30);
/// How long a negative review is cached: shorter, so that a new permission works soon.
const REFUSED_LIFETIME: Duration = Duration::from_secs(5);
const CACHE_ENTRIES: usize = 512;
/// Longer than any token that API servers issue.
const LONGEST_TOKEN: usize = 16 << 10;
/// Limit of concurrent reviews: clients with bad tokens must not flood the API server through this server.
const MAX_REVIEWS: usize = 8;
/// Time limit of both reviews, including the wait for a free slot.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// The least time between two notices that reviews fail.
const NOTICE_PAUSE: Duration = Duration::from_secs(30);

/// The decision of the API server about one token, verb and path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessDecision {
    Allowed,
    /// There is no token, or the API server does not accept it.
    Unknown,
    /// The user of the token may not do this.
    Forbidden,
}

/// Lets a request through only if its user has the right to the path, a non-resource URL.
pub(crate) struct AccessGuard {
    client: Client,
    reviews: Semaphore,
    allowed: Mutex<ExpiringCache<AccessDecision>>,
    /// A cache of its own, so that invalid tokens do not evict valid ones.
    refused: Mutex<ExpiringCache<AccessDecision>>,
    report: ReportNotice,
    last_notice: Mutex<Option<Instant>>,
}

impl AccessGuard {
    /// `client` needs the right to create `tokenreviews` and `subjectaccessreviews`.
    pub(crate) fn new(client: Client, report: ReportNotice) -> Arc<Self> {
        Arc::new(Self {
            client,
            reviews: Semaphore::new(MAX_REVIEWS),
            allowed: Mutex::new(ExpiringCache::new(CACHE_ENTRIES)),
            refused: Mutex::new(ExpiringCache::new(CACHE_ENTRIES)),
            report,
            last_notice: Mutex::default(),
        })
    }

    /// Puts the guard before all routes of a router. The router must not be nested: the guard must see the paths that
    /// clients request.
    pub(crate) fn protect(self: Arc<Self>, router: Router) -> Router {
        router.layer(from_fn_with_state(self, check_access))
    }

    async fn decide(&self, headers: &HeaderMap, verb: &str, path: &str) -> anyhow::Result<AccessDecision> {
        let Some(token) = bearer(headers) else { return Ok(AccessDecision::Unknown) };
        let key = key(token, verb, path);
        let now = Instant::now();
        for cache in [&self.allowed, &self.refused] {
            if let Some(decision) = cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key, now) {
                return Ok(decision);
            }
        }
        let decision = time::timeout(REVIEW_TIMEOUT, self.review(token, verb, path)).await;
        let decision = decision.map_err(|_| anyhow!("no answer for {REVIEW_TIMEOUT:?}"))??;
        let (cache, lifetime) = match decision {
            AccessDecision::Allowed => (&self.allowed, ALLOWED_LIFETIME),
            AccessDecision::Unknown | AccessDecision::Forbidden => (&self.refused, REFUSED_LIFETIME),
        };
        // The lifetime starts with the request, because the answer may be as old.
        cache.lock().unwrap_or_else(PoisonError::into_inner).put(key, decision, now, now + lifetime);
        Ok(decision)
    }

    async fn review(&self, token: &str, verb: &str, path: &str) -> anyhow::Result<AccessDecision> {
        let _slot = self.reviews.acquire().await?;
        let Some(user) = self.user(token).await? else { return Ok(AccessDecision::Unknown) };
        Ok(if self.is_allowed(user, verb, path).await? {
            AccessDecision::Allowed
        } else {
            AccessDecision::Forbidden
        })
    }

    async fn user(&self, token: &str) -> anyhow::Result<Option<UserInfo>> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::<TokenReview>::all(self.client.clone());
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(innermost_cause).context("create a TokenReview")?;
        let status = answer.status.context("a TokenReview without a status")?;
        Ok(if status.authenticated == Some(true) { Some(status.user.unwrap_or_default()) } else { None })
    }

    async fn is_allowed(&self, user: UserInfo, verb: &str, path: &str) -> anyhow::Result<bool> {
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
        let answer = answer.map_err(innermost_cause).context("create a SubjectAccessReview")?;
        let status = answer.status.context("a SubjectAccessReview without a status")?;
        Ok(status.allowed && status.denied != Some(true))
    }

    /// Reports why a review failed, at most once per [`NOTICE_PAUSE`]. Clients do not get the cause.
    fn report_failure(&self, error: &anyhow::Error) {
        let now = Instant::now();
        let mut last = self.last_notice.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now >= last + NOTICE_PAUSE) {
            *last = Some(now);
            drop(last);
            (self.report)(ServerNotice::ReviewFailed(format!("{error:#}")));
        }
    }
}

async fn check_access(State(guard): State<Arc<AccessGuard>>, request: Request, next: Next) -> Response {
    let verb = request.method().as_str().to_ascii_lowercase();
    match guard.decide(request.headers(), &verb, request.uri().path()).await {
        Ok(AccessDecision::Allowed) => next.run(request).await,
        Ok(AccessDecision::Unknown) => {
            let challenge = [(WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, "unauthorized\n").into_response()
        }
        Ok(AccessDecision::Forbidden) => (StatusCode::FORBIDDEN, "forbidden\n").into_response(),
        Err(error) => {
            guard.report_failure(&error);
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
