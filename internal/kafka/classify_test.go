package kafka

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/IBM/sarama"

	"github.com/streamd/streamd/internal/broker"
)

// everywhere is what each code means where nothing special is said of it.
var everywhere = map[sarama.KError]verdict{
	sarama.ErrUnknown:                            {broker.ErrAbortable, rerun},
	sarama.ErrNoError:                            {nil, done},
	sarama.ErrOffsetOutOfRange:                   {broker.ErrOffsetOutOfRange, stop},
	sarama.ErrInvalidMessage:                     {broker.ErrCorrupt, rerun},
	sarama.ErrUnknownTopicOrPartition:            {broker.ErrUnknownTopic, elsewhere},
	sarama.ErrInvalidMessageSize:                 {broker.ErrAbortable, rerun},
	sarama.ErrLeaderNotAvailable:                 {broker.ErrUnreachable, elsewhere},
	sarama.ErrNotLeaderForPartition:              {broker.ErrUnreachable, elsewhere},
	sarama.ErrRequestTimedOut:                    {broker.ErrUnreachable, elsewhere},
	sarama.ErrBrokerNotAvailable:                 {broker.ErrUnreachable, elsewhere},
	sarama.ErrReplicaNotAvailable:                {broker.ErrUnreachable, elsewhere},
	sarama.ErrMessageSizeTooLarge:                {broker.ErrRecordTooLarge, halve},
	sarama.ErrStaleControllerEpochCode:           {broker.ErrUnreachable, elsewhere},
	sarama.ErrOffsetMetadataTooLarge:             {broker.ErrConfig, stop},
	sarama.ErrNetworkException:                   {broker.ErrUnreachable, elsewhere},
	sarama.ErrOffsetsLoadInProgress:              {broker.ErrUnreachable, again},
	sarama.ErrConsumerCoordinatorNotAvailable:    {broker.ErrUnreachable, elsewhere},
	sarama.ErrNotCoordinatorForConsumer:          {broker.ErrUnreachable, elsewhere},
	sarama.ErrInvalidTopic:                       {broker.ErrConfig, stop},
	sarama.ErrMessageSetSizeTooLarge:             {broker.ErrRecordTooLarge, halve},
	sarama.ErrNotEnoughReplicas:                  {broker.ErrUnreachable, again},
	sarama.ErrNotEnoughReplicasAfterAppend:       {broker.ErrUnreachable, again},
	sarama.ErrInvalidRequiredAcks:                {broker.ErrConfig, stop},
	sarama.ErrIllegalGeneration:                  {broker.ErrIllegalGeneration, regroup},
	sarama.ErrInconsistentGroupProtocol:          {broker.ErrConfig, stop},
	sarama.ErrInvalidGroupId:                     {broker.ErrConfig, stop},
	sarama.ErrUnknownMemberId:                    {broker.ErrUnknownMember, regroup},
	sarama.ErrInvalidSessionTimeout:              {broker.ErrConfig, stop},
	sarama.ErrRebalanceInProgress:                {broker.ErrIllegalGeneration, regroup},
	sarama.ErrInvalidCommitOffsetSize:            {broker.ErrConfig, stop},
	sarama.ErrTopicAuthorizationFailed:           {broker.ErrAuthorization, stop},
	sarama.ErrGroupAuthorizationFailed:           {broker.ErrAuthorization, stop},
	sarama.ErrClusterAuthorizationFailed:         {broker.ErrAuthorization, stop},
	sarama.ErrInvalidTimestamp:                   {broker.ErrConfig, stop},
	sarama.ErrUnsupportedSASLMechanism:           {broker.ErrAuthentication, stop},
	sarama.ErrIllegalSASLState:                   {broker.ErrAuthentication, stop},
	sarama.ErrUnsupportedVersion:                 {broker.ErrUnsupported, stop},
	sarama.ErrTopicAlreadyExists:                 {broker.ErrTopicExists, stop},
	sarama.ErrInvalidPartitions:                  {broker.ErrConfig, stop},
	sarama.ErrInvalidReplicationFactor:           {broker.ErrConfig, stop},
	sarama.ErrInvalidReplicaAssignment:           {broker.ErrConfig, stop},
	sarama.ErrInvalidConfig:                      {broker.ErrConfig, stop},
	sarama.ErrNotController:                      {broker.ErrUnreachable, elsewhere},
	sarama.ErrInvalidRequest:                     {broker.ErrAbortable, rerun},
	sarama.ErrUnsupportedForMessageFormat:        {broker.ErrUnsupported, stop},
	sarama.ErrPolicyViolation:                    {broker.ErrConfig, stop},
	sarama.ErrOutOfOrderSequenceNumber:           {broker.ErrAbortable, rerun},
	sarama.ErrDuplicateSequenceNumber:            {broker.ErrAbortable, rerun},
	sarama.ErrInvalidProducerEpoch:               {broker.ErrFenced, suspect},
	sarama.ErrInvalidTxnState:                    {broker.ErrAbortable, rerun},
	sarama.ErrInvalidProducerIDMapping:           {broker.ErrAbortable, renew},
	sarama.ErrInvalidTransactionTimeout:          {broker.ErrConfig, stop},
	sarama.ErrConcurrentTransactions:             {broker.ErrAbortable, markers},
	sarama.ErrTransactionCoordinatorFenced:       {broker.ErrAbortable, rerun},
	sarama.ErrTransactionalIDAuthorizationFailed: {broker.ErrAuthorization, stop},
	sarama.ErrSecurityDisabled:                   {broker.ErrUnsupported, stop},
	sarama.ErrOperationNotAttempted:              {broker.ErrAbortable, rerun},
	sarama.ErrKafkaStorageError:                  {broker.ErrUnreachable, elsewhere},
	sarama.ErrLogDirNotFound:                     {broker.ErrConfig, stop},
	sarama.ErrSASLAuthenticationFailed:           {broker.ErrAuthentication, stop},
	sarama.ErrUnknownProducerID:                  {broker.ErrAbortable, rerun},
	sarama.ErrReassignmentInProgress:             {broker.ErrAbortable, rerun},
	sarama.ErrDelegationTokenAuthDisabled:        {broker.ErrAuthentication, stop},
	sarama.ErrDelegationTokenNotFound:            {broker.ErrAuthentication, stop},
	sarama.ErrDelegationTokenOwnerMismatch:       {broker.ErrAuthentication, stop},
	sarama.ErrDelegationTokenRequestNotAllowed:   {broker.ErrAuthentication, stop},
	sarama.ErrDelegationTokenAuthorizationFailed: {broker.ErrAuthorization, stop},
	sarama.ErrDelegationTokenExpired:             {broker.ErrAuthentication, stop},
	sarama.ErrInvalidPrincipalType:               {broker.ErrAuthentication, stop},
	sarama.ErrNonEmptyGroup:                      {broker.ErrAbortable, rerun},
	sarama.ErrGroupIDNotFound:                    {broker.ErrAbortable, rerun},
	sarama.ErrFetchSessionIDNotFound:             {broker.ErrUnreachable, again},
	sarama.ErrInvalidFetchSessionEpoch:           {broker.ErrUnreachable, again},
	sarama.ErrListenerNotFound:                   {broker.ErrUnreachable, elsewhere},
	sarama.ErrTopicDeletionDisabled:              {broker.ErrConfig, stop},
	sarama.ErrFencedLeaderEpoch:                  {broker.ErrUnreachable, elsewhere},
	sarama.ErrUnknownLeaderEpoch:                 {broker.ErrUnreachable, elsewhere},
	sarama.ErrUnsupportedCompressionType:         {broker.ErrUnsupported, stop},
	sarama.ErrStaleBrokerEpoch:                   {broker.ErrUnreachable, elsewhere},
	sarama.ErrOffsetNotAvailable:                 {broker.ErrUnreachable, again},
	sarama.ErrMemberIdRequired:                   {broker.ErrUnknownMember, regroup},
	sarama.ErrPreferredLeaderNotAvailable:        {broker.ErrUnreachable, elsewhere},
	sarama.ErrGroupMaxSizeReached:                {broker.ErrConfig, stop},
	sarama.ErrFencedInstancedId:                  {broker.ErrFenced, stop},
	sarama.ErrEligibleLeadersNotAvailable:        {broker.ErrUnreachable, elsewhere},
	sarama.ErrElectionNotNeeded:                  {broker.ErrAbortable, rerun},
	sarama.ErrNoReassignmentInProgress:           {broker.ErrAbortable, rerun},
	sarama.ErrGroupSubscribedToTopic:             {broker.ErrAbortable, rerun},
	sarama.ErrInvalidRecord:                      {broker.ErrConfig, stop},
	sarama.ErrUnstableOffsetCommit:               {broker.ErrUnstableOffsets, again},
	sarama.ErrThrottlingQuotaExceeded:            {broker.ErrUnreachable, again},
	sarama.ErrProducerFenced:                     {broker.ErrFenced, suspect},
	sarama.ErrInvalidUpdateVersion:               {broker.ErrAbortable, rerun},
	codeUnknownTopicID:                           {broker.ErrUnknownTopic, elsewhere},
	codeInconsistentTopicID:                      {broker.ErrUnknownTopic, elsewhere},
	codeTransactionAbort:                         {broker.ErrAbortable, rerun},
}

// special is what depends on the request.
var special = map[request]map[sarama.KError]verdict{
	reqProduce: {
		sarama.ErrDuplicateSequenceNumber: {nil, done},
		sarama.ErrInvalidMessage:          {broker.ErrAbortable, rerun},
	},
	reqTxnOffsetCommit: {sarama.ErrFencedInstancedId: {broker.ErrUnknownMember, regroup}},
}

// withRules adds the rules that hold for many codes or requests.
func withRules(m map[request]map[sarama.KError]verdict) map[request]map[sarama.KError]verdict {
	for _, r := range []request{reqFetch, reqListOffsets, reqDeleteRecords, reqOffsetFetch, reqMetadata, reqConfigs, reqCoordinator} {
		m[r] = map[sarama.KError]verdict{
			sarama.ErrUnknown:        {broker.ErrUnreachable, again},
			sarama.ErrInvalidMessage: {broker.ErrCorrupt, elsewhere},
		}
	}
	// EndTxn is sent again for 14, 15, 16 and 51 only.
	m[reqEndTxn] = map[sarama.KError]verdict{}
	for code, v := range everywhere {
		if v.react == again && code != sarama.ErrOffsetsLoadInProgress ||
			v.react == elsewhere && code != sarama.ErrConsumerCoordinatorNotAvailable && code != sarama.ErrNotCoordinatorForConsumer {
			m[reqEndTxn][code] = verdict{v.kind, rerun}
		}
	}
	return m
}

func TestClassifyEveryCode(t *testing.T) {
	specials := withRules(special)
	requests := []request{
		reqInit, reqAddPartitions, reqAddOffsets, reqProduce, reqTxnOffsetCommit, reqEndTxn, reqFetch, reqListOffsets, reqOffsetFetch,
		reqMetadata, reqConfigs, reqCreateTopic, reqDeleteRecords, reqCoordinator, reqJoin, reqLeave, reqHeartbeat, reqConnect,
	}
	named := 0
	for code := sarama.KError(-1); code <= 130; code++ {
		want, known := everywhere[code]
		if known {
			named++
		} else {
			want = verdict{broker.ErrAbortable, rerun} // the default for codes that are newer than we are
		}
		for _, req := range requests {
			w := want
			if s, ok := specials[req][code]; ok {
				w = s
			}
			kind, react := classify(req, code)
			if kind != w.kind || react != w.react {
				t.Errorf("%s, code %d: %v and %v, want %v and %v", req, code, kind, react, w.kind, w.react)
			}
			if react != done && kind == nil {
				t.Errorf("%s, code %d: %v without a kind", req, code, react)
			}
		}
	}
	if named != len(everywhere) {
		t.Errorf("%d of %d codes seen", named, len(everywhere))
	}
	// Every code that sarama has a text for is in the table.
	for code := sarama.KError(-1); code <= 130; code++ {
		if _, ok := everywhere[code]; !ok && !strings.HasPrefix(code.Error(), "Unknown error") {
			t.Errorf("code %d (%v) is not in the table", code, code)
		}
	}
}

func TestCodeErrorsNameTheRemedy(t *testing.T) {
	for _, c := range []struct {
		req   request
		where string
		code  sarama.KError
		want  string
	}{
		{reqProduce, "out", sarama.ErrTopicAuthorizationFailed, "Write on topic out"},
		{reqFetch, "in", sarama.ErrTopicAuthorizationFailed, "Read on topic in"},
		{reqMetadata, "in", sarama.ErrTopicAuthorizationFailed, "Describe on topic in"},
		{reqAddOffsets, "app", sarama.ErrGroupAuthorizationFailed, "Read on group app"},
		{reqInit, "app-x", sarama.ErrTransactionalIDAuthorizationFailed, "Write and Describe on transactional ID app-x"},
		{reqCreateTopic, "app-r", sarama.ErrClusterAuthorizationFailed, "Create on topic app-r"},
		{reqJoin, "app", sarama.ErrFencedInstancedId, "instance ID"},
	} {
		err := codeError(c.req, c.where, c.code)
		if !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.code) || err.Code != int16(c.code) {
			t.Errorf("%v does not say %q", err, c.want)
		}
	}
	if got := fmt.Sprint(codeError(reqEndTxn, "x", sarama.ErrProducerFenced)); !strings.Contains(got, "PRODUCER_FENCED") {
		t.Error(got)
	}
}
