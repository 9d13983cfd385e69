/* One task's local store beside its changelog.  A transaction adds one update; its outcome is acked,
   unknown (committed or not), or refused.  The process may die between any two steps; what is in
   memory is gone then, the local store stays.
   BUG 0: the design          1: applied before the commit      2: applied on an unknown outcome
       3: a restore writes its target as the position first      4: the overlay survives an abort
       5: a restore starts from what memory holds after an unknown outcome, without reading the truth
   Property: whenever the task runs, its state is the fold of the changelog up to its position, and the
   position is the end of the changelog. */
#define NT 3
byte log = 0;             /* committed updates in Kafka */
byte disk = 0, pos = 0;   /* the local store: updates in it, and its position in the changelog */
byte overlay = 0;         /* updates of the open transaction, in memory */
byte state = 0;           /* 0 restoring, 1 running */
byte deaths = 0, rounds = 0;

inline die() { atomic { deaths < 2 -> deaths++; overlay = 0; state = 0 } }

active proctype Task() {
  byte target; bool dead, acked, done;
  do
  :: state == 0 ->
     dead = false;
     target = log;                                   /* the high watermark; one writer: nothing is open */
     if :: BUG == 3 && pos < target -> atomic { done = false; pos = target };
           if :: die(); dead = true :: skip fi;
           if :: !dead -> disk = log :: else -> skip fi
     :: else -> skip
     fi;
     do
     :: !dead && pos < target -> atomic { disk++; pos++ };          /* each step with its own position */
        if :: die(); dead = true :: skip fi
     :: else -> break
     od;
     if :: !dead -> state = 1 :: else -> skip fi
  :: state == 1 && rounds < NT ->
     assert(disk + overlay == log && pos == log);
     rounds++;
     overlay++;
     acked = false;
     if :: BUG == 1 -> atomic { disk = disk + overlay; pos++ } :: else -> skip fi;
     if
     :: die()                                          /* before the commit */
     :: log++; acked = true                            /* committed, acked */
     :: log++;                                         /* committed, the answer is lost */
        if :: BUG == 2 -> atomic { disk = disk + overlay; pos++; overlay = 0 }
           :: BUG == 5 -> overlay = 0
           :: else -> atomic { overlay = 0; state = 0 } fi
     :: if :: BUG == 2 -> atomic { disk = disk + overlay; pos++; overlay = 0 }   /* not committed, unknown */
           :: BUG == 5 -> overlay = 0
           :: BUG == 4 -> state = 0
           :: else -> atomic { overlay = 0; state = 0 } fi
     fi;
     if
     :: acked && BUG != 1 ->
        if :: die()                                    /* committed, not applied */
           :: atomic { disk = disk + overlay; pos++; overlay = 0 } fi
     :: acked && BUG == 1 -> overlay = 0
     :: else -> skip
     fi
  :: else -> break
  od
}
