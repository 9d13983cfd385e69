/* Requests that arrive late.  One producer, transactions 1..NT on protocol V1.  Each of Produce,
   TxnOffsetCommit and EndTxn may be answered, be handled with its answer lost, be lost, or stay in the
   network and arrive at any later time.  After a doubt the batch is run again (a new attempt, whose
   content may differ: other batch limits).
   REINIT 1: after any doubt InitProducerId comes first: a new epoch, sequence numbers from 0
          0: the transaction is aborted and the next attempt goes on with the same epoch
   Property: whatever commits is exactly the attempt that the client decided to commit, once, with its
   own offset; the committed offset never goes back. */
#define NT 2
#define TRIES 5
byte epoch = 1, seq = 0;              /* the broker's */
bool inTxn = false, committedLast = false;
byte nOpen = 0, openBy = 0;           /* open records; the attempt of the newest */
byte pend = 0, off = 0;
byte attempt = 0, decided = 0, t = 1; /* the client's; decided: the attempt it asked to commit */
bool lP, lO, lE;                      /* one late request of each kind */
byte lPe, lPs, lPa, lOe, lOv, lEe;
byte ans;

inline produce(pe, ps, pa) {
  if
  :: pe == epoch && inTxn && ps == seq -> nOpen++; openBy = pa; seq++; ans = 1
  :: pe == epoch && inTxn && ps + 1 == seq -> ans = 1          /* taken for a repetition */
  :: else -> ans = 2
  fi
}
inline offsets(oe, ov) { if :: oe == epoch && inTxn -> pend = ov; ans = 1 :: else -> ans = 2 fi }
inline endtxn(ee) {
  if
  :: ee == epoch && inTxn ->
       assert(decided == attempt && nOpen == 1 && openBy == attempt && pend == t && pend >= off);
       off = pend; pend = 0; nOpen = 0; inTxn = false; committedLast = true; ans = 1
  :: ee == epoch && !inTxn && committedLast -> ans = 1
  :: else -> ans = 2
  fi
}
inline abort() { pend = 0; nOpen = 0; inTxn = false; committedLast = false }

active proctype Net() {
  do
  :: atomic { lP -> lP = false; produce(lPe, lPs, lPa) }
  :: atomic { lO -> lO = false; offsets(lOe, lOv) }
  :: atomic { lE -> lE = false; endtxn(lEe) }
  od
}

active proctype Client() {
  byte e = 1, s = 0; bool doubt;
  do
  :: t <= NT && attempt < TRIES ->
     atomic { attempt++; doubt = false; inTxn = true; committedLast = false }
     if
     :: atomic { skip; produce(e, s, attempt); if :: ans == 1 -> s++ :: else -> doubt = true fi }
     :: atomic { skip; produce(e, s, attempt); doubt = true }
     :: atomic { !lP -> lP = true; lPe = e; lPs = s; lPa = attempt; doubt = true }
     :: doubt = true
     fi;
     if :: doubt -> skip
     :: else ->
        if
        :: atomic { skip; offsets(e, t); if :: ans == 1 -> skip :: else -> doubt = true fi }
        :: atomic { skip; offsets(e, t); doubt = true }
        :: atomic { !lO -> lO = true; lOe = e; lOv = t; doubt = true }
        :: doubt = true
        fi
     fi;
     if :: doubt -> skip
     :: else ->
        decided = attempt;
        if
        :: atomic { skip; endtxn(e); if :: ans == 1 -> t++ :: else -> doubt = true fi }
        :: atomic { skip; endtxn(e); doubt = true }
        :: atomic { !lE -> lE = true; lEe = e; doubt = true }
        :: doubt = true
        fi
     fi;
     if
     :: !doubt -> skip
     :: doubt && REINIT == 1 -> atomic { abort(); epoch++; e = epoch; seq = 0; s = 0 }
     :: doubt && REINIT == 0 -> atomic { if :: inTxn -> abort() :: else -> skip fi }
     fi;
     if :: doubt && off == t -> t++ :: else -> skip fi   /* the truth is read, not guessed */
  :: else -> break
  od
}
