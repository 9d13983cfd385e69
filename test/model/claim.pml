/* A database sink: one partition of an internal topic is written into a database by a task that moves
   between two processes, of which any may be a zombie. The database holds the rows, and for the sink and
   partition a fence and the next offset. A process claims the partition (the fence goes up, it reads the next
   offset), then writes batches: one database transaction each with the rows and the progress, which the
   WHERE clause allows only under its own fence. Any answer of COMMIT may be lost.
   BUG 0: the design
       1: no fence: the progress is updated whatever the fence is
       2: the rows in one transaction, the progress in a second one
       3: the position is taken from the committed offsets of the group, which lag, not from the database
       4: a COMMIT without an answer is taken for a failure and the batch is written again without reading
          the progress
       5: the claim reads the next offset before it raises the fence
       6: a COMMIT without an answer is taken for a success
   Property: each record is in the database once, in order; at the end all are. */
#define NREC 3
byte fence = 0, next = 0;     /* the progress row */
byte rows = 0;                /* records 0 .. rows-1 are there */
byte group = 0;               /* the group's offset: behind the database, for it is committed later */
byte claims = 0, doubts = 0;

/* a row that is there already, or one that leaves a gap, is the end of the promise */
inline insert(at) { assert(rows == at); rows = at + 1 }

proctype Sink() {
  byte mine, at; bool again, ok;
  do
  :: claims < 3 && next < NREC ->
     /* claim */
     claims++;
     if
     :: BUG == 5 -> at = next; atomic { fence++; mine = fence }
     :: else -> atomic { fence++; mine = fence; at = next }
     fi;
     if :: BUG == 3 -> at = group :: else -> skip fi;
     again = false;
     do
     :: at < NREC ->
        /* the transaction of one batch */
        ok = false;
        if
        :: BUG == 2 ->
           atomic { fence == mine -> insert(at) };
           if :: skip :: goto dead fi;                          /* it dies in between */
           atomic { if :: fence == mine -> next = at + 1; ok = true :: else -> skip fi }
        :: BUG != 2 ->
           atomic {
             if
             :: fence == mine || BUG == 1 -> insert(at); next = at + 1; ok = true
             :: else -> skip                                    /* 0 rows: fenced, stop */
             fi }
        :: BUG == 2 -> atomic { fence != mine -> goto dead }
        :: doubts < 2 -> doubts++;                              /* the connection broke before COMMIT, and nobody knows */
           if
           :: BUG == 6 -> at++; again = true
           :: BUG != 6 -> again = true; if :: BUG == 4 -> skip :: else -> atomic { fence == mine -> at = next } unless { fence != mine -> goto dead } fi
           fi
        fi;
        if
        :: again -> again = false
        :: !again && !ok -> goto dead
        :: !again && ok ->
           if
           :: at++                                              /* answered */
           :: doubts < 2 -> doubts++;                           /* COMMIT was done, its answer is lost */
              if
              :: BUG == 4 -> skip
              :: BUG == 6 -> at++
              :: else -> atomic { fence == mine -> at = next } unless { fence != mine -> goto dead }
              fi
           fi;
           if :: group < at -> group = at :: skip fi            /* the offsets follow, at some time */
        fi
     :: at >= NREC -> break
     :: goto dead                                               /* killed, or the task is revoked */
     od;
     assert(next == NREC && rows == NREC);
dead: mine = 0
  :: next >= NREC -> break
  :: claims >= 3 -> break
  od
}

init { atomic { run Sink(); run Sink() } }
